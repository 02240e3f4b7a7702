"""PromptX as a Python MCP server: role files (DPML) and associative memory, compatible with PromptX 1.27/2.4.

Layers, each importing only those before it: `builtin`, `errors`, `ids`, `yielding`; the cores `dpml`, `lint`,
`network`, `tokenizer`; the shells `rolefiles`, `nuwa`, `roles`, `skills` for roles and skills, and `ledger`,
`new_engrams`, `similarity`, `snapshot`, `memory_cache`, `memory`, `role_checks` for memory; `presentation`; the MCP
edge `server` and `__main__`. Nothing here imports agentic_rag, and only the edge imports `mcp`.
"""
