"""Agentic RAG: a server in which the model drives its tools over MCP."""

__version__ = "0.1.0"
