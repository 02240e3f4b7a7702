"""Sources: MCP servers, folders and websites whose items become documents of a domain."""
