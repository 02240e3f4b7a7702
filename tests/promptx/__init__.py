"""Tests of mcp_servers.promptx."""
