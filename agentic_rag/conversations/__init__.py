"""Conversations: their records, sent and shown messages, waits, titles, exports and links."""
