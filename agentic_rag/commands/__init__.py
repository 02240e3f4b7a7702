"""The commands of `agentic-rag`, one module a noun."""
