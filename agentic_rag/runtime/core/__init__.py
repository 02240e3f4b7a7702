"""A turn without I/O: no await, no store, no clock."""
