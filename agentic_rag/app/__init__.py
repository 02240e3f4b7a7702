"""The composition of a server: every part built once, and how a process serves them."""
