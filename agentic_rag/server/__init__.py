"""HTTP, WebSocket, SSE and their dialects."""
