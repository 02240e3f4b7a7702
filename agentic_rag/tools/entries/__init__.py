"""Pasted MCP entries: converts any known shape to one type. Pure."""
