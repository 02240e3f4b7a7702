"""The REST API: one module for each family of routes."""
