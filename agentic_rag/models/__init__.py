"""The LLM boundary: one protocol, one module per provider."""
