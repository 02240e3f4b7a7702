"""The commands of `agentic-rag`, one module for each noun."""
