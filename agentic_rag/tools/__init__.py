"""MCP servers: which may be started, one server's life, the pool of connections, and the tools an agent sees."""
