"""Protocols of other products at separate paths: MCP, A2A, OpenAI, AG-UI, AI SDK, and the older contracts."""
