"""MCP servers of the project: each runs in the host process or alone. Nothing here imports agentic_rag."""
