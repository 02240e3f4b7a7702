"""Every dialect, fed every kind of event."""
