"""Persistence, one module per noun."""
