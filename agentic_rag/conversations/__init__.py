"""Conversations: business records, what is shown of a transcript, titles."""
