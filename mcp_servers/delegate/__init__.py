"""Handing a task to another role. In process only: the host supplies what runs the child."""
