"""The pure part of a turn: no await, no store, no clock."""
