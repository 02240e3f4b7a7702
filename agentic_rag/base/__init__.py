"""Values that every other package uses: errors, events, messages, settings and small tools."""
