"""Whether the extra ``ocr`` is installed, and how to get it. Loads none of it."""

from importlib.util import find_spec

HINT = "to read scans, install the extra: pip install 'agentic-rag[ocr]'"


def is_installed() -> bool:
    """Whether RapidOCR and its runtime can be imported."""
    return find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None
