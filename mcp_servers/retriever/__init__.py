"""Document retrieval: parsing, chunking, the index and the `search_documents` tool.

The package runs inside the host process or standalone (`python -m mcp_servers.retriever`). Import the modules you need:
the package itself imports neither `mcp` nor a model runtime.
"""

import os

# onnxruntime reads it at its import. Otherwise version 1.31 reports its use to Microsoft from every process that runs a
# model (embedder, reranker, OCR), and stores an id of the machine below the home folder.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
