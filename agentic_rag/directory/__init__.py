"""What everyone reads of domains: records, settings, facts."""
