"""Pasted MCP entries: from any known shape to one type. Pure."""
