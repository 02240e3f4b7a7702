"""The ways to an MCP server: a child process, a web address."""
