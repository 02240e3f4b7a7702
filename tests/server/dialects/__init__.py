"""Every dialect, with every kind of event."""
