"""Document retrieval: parsing, chunking, the index and the `search_documents` tool.

The package runs inside the host process or standalone (`python -m mcp_servers.retriever`). Import the modules you need:
the package itself imports neither `mcp` nor a model runtime.
"""
