"""Transports to an MCP server: a child process, or a web address."""
