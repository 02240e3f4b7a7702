"""What may be spawned, one MCP server's life, the pool, and what an agent sees."""
