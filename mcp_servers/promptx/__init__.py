"""PromptX as a Python MCP server: role files (DPML) and associative memory, compatible with PromptX 1.27/2.4.

Layers, each importing only those before it: `builtin`, `errors`, `ids`; the cores `dpml`, `lint`, `network`; the shells
`rolefiles`, `nuwa`, `roles` for roles and `ledger`, `snapshot`, `kept`, `memory` for memory; `present`; the MCP edge
`server` and `__main__`. Nothing here imports agentic_rag, and only the edge imports `mcp`.
"""
