"""Shared read access to domains: their records, settings and collection facts."""
