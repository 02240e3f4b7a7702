"""Document sources: MCP servers, folders and websites."""
