"""The WebSocket `/ws`: frames, connections, and uvicorn's protocol for them."""
