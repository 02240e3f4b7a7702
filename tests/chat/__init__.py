"""The terminal client, against real servers."""
