"""Protocols of other products at paths of their own: MCP, A2A, OpenAI, AG-UI, AI SDK, and the older contracts."""
