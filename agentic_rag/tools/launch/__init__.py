"""Launch policy: which servers may be started or connected to, and the exact form of the command or address."""
