"""Extensions of installed packages by Python entry points: found by group, loaded on first use, named in errors.

    agentic_rag.document_formats   readers of further files (`formats.DocumentFormat`)
    agentic_rag.embedders          further embedders (`embedders.EmbedderFactory`), by the scheme of a setting

An operator installs such a package beside this one; no code here has to change. The code of an extension runs with the
rights of the server, like any installed package.
"""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

from mcp_servers.retriever.errors import ExtensionBroken

FORMATS = "agentic_rag.document_formats"
EMBEDDERS = "agentic_rag.embedders"

NOT_EXTENDED = "AGENTIC_RAG_NOT_EXTENDED"
"""Environment variable of our child processes: the groups without an entry point, separated by spaces.

Without it, each process that reads documents would search the metadata of all installed packages at its start. With the
import of ``importlib.metadata`` that was a quarter of the CPU time of the start.
"""

OCR_HINT = "to read scans, install the extra: pip install 'agentic-rag[ocr]'"

MAX_REASON = 200


def has_ocr() -> bool:
    """Return whether the extra ``ocr`` is installed, without importing RapidOCR or its runtime."""
    return find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None


def find_extensions(group: str) -> "list[EntryPoint]":
    """Return the entry points of a group, sorted by name. Reads the metadata of all installed packages: some 20 ms."""
    if group in os.environ.get(NOT_EXTENDED, "").split():
        return []
    from importlib.metadata import entry_points  # most processes that read documents never get here

    return sorted(entry_points(group=group), key=lambda entry: entry.name)


def describe(entry: "EntryPoint") -> str:
    """Return the name of an extension with its package and version, for logs and errors."""
    return f"{entry.name} ({entry.dist.name} {entry.dist.version})" if entry.dist else entry.name


def load_extension(entry: "EntryPoint") -> Any:
    """Import and return the object of an entry point.

    Raises:
        ExtensionBroken: the object cannot be imported.
    """
    try:
        return entry.load()
    except Exception as exc:  # third-party code may raise anything at its import
        raise ExtensionBroken(describe(entry), reason_of(exc)) from exc


def reason_of(error: Exception) -> str:
    """Return an exception of an extension as one bounded line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON]
