"""Domains: their records, settings, MCP servers, secrets and prompt components."""
