"""Documents in, the right passage out: parsing, chunking, index and the `search_documents` tool.

Runs inside the host process or alone (`python -m mcp_servers.retriever`). Import the modules you need:
this package pulls in neither `mcp` nor a model runtime by itself.
"""
