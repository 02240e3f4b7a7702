"""The edge: HTTP, WebSocket, SSE and their dialects."""
