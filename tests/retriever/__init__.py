"""Tests of `mcp_servers.retriever`: real indexes in temporary folders, real files, real child processes."""
