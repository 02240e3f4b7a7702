"""What installed packages add by Python entry points: found by group, loaded when needed, named when it fails.

    agentic_rag.document_formats   readers of further files (`formats.DocumentFormat`)
    agentic_rag.embedders          further embedders (`embedders.EmbedderFactory`), by the scheme of a setting

An operator installs such a package beside this one and uses it; nothing here has to change. Its code runs with our
rights, as any installed package does.
"""

from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from mcp_servers.retriever.errors import ExtensionBroken

FORMATS = "agentic_rag.document_formats"
EMBEDDERS = "agentic_rag.embedders"

OCR_HINT = "to read scans, install the extra: pip install 'agentic-rag[ocr]'"

MAX_REASON = 200


def has_ocr() -> bool:
    """Whether the extra ``ocr`` is installed: RapidOCR and its runtime can be imported. Loads neither."""
    return find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None


def find_extensions(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, by name. Reads the metadata of all installed packages: some 20 ms."""
    return sorted(entry_points(group=group), key=lambda entry: entry.name)


def describe(entry: EntryPoint) -> str:
    """Return the extension's name with that of its package, for logs and errors."""
    return f"{entry.name} ({entry.dist.name} {entry.dist.version})" if entry.dist else entry.name


def load_extension(entry: EntryPoint) -> Any:
    """Return the object that an entry point names.

    Raises:
        ExtensionBroken: it cannot be imported.
    """
    try:
        return entry.load()
    except Exception as exc:  # code of others: it may throw anything when it is imported
        raise ExtensionBroken(describe(entry), reason_of(exc)) from exc


def reason_of(error: Exception) -> str:
    """Return one bounded line that says what an extension did."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON]
