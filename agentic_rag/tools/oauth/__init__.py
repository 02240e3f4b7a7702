"""Signing in at MCP servers (OAuth 2.1): finding who grants tokens, asking for them, and sending them.

The protocol library has the parts that read documents and check them; here is what a server of many users needs beside
it: a sign-in in two halves with hours between, tokens that are kept elsewhere, and addresses that are not trusted.
"""
