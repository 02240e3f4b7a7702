"""The MCP server that delegates a task to another role.

Runs in the host's process only, because the host supplies the `ChildRunner`.
"""
