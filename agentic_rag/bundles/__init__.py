"""Bundles: a domain in one file, to export, move, and import as a new domain or over an existing one.

``form`` defines the parts of a bundle, and `archive` its bytes; ``receiving`` stores and unpacks untrusted bundles.
``entries`` removes secrets from MCP entries, and ``contents`` collects a domain. ``overlay`` and ``report`` compute the
changes of an import, and ``importing`` applies them.
"""
