"""MCP servers of the project: each runs in the host process or alone. Nothing here imports agentic_rag."""

__version__ = "0.1.0"
"""What the servers announce; the same as `agentic_rag.__version__`."""
