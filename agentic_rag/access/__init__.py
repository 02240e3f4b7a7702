"""Access control: credentials, rights, and the audit of changes."""
