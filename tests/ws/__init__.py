"""The WebSocket edge: real sockets, real client."""
