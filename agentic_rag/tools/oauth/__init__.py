"""Signing in at MCP servers (OAuth 2.1): finding the authorization server, asking for tokens, and sending them.

The protocol library reads and checks the documents. This package adds the needs of a server with many users: a sign-in
in two halves that may be hours apart, tokens stored elsewhere, and addresses that are not trusted.
"""
