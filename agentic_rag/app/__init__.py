"""The composition of a server, and how a process serves it."""
