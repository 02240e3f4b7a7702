"""The tables of docs/documents.md, generated from the list of formats. ``scripts/write_formats`` writes them."""

from collections import defaultdict
from pathlib import Path

from mcp_servers.retriever.formats import EXTRAS, SAVE_INSTEAD, our_formats

PAGE = Path(__file__).parents[1] / "docs" / "documents.md"
BEGIN = "<!-- written by scripts/write_formats -->\n"
END = "<!-- end -->\n"

KINDS = {
    "pdf": "PDF",
    "word": "Word",
    "slides": "PowerPoint",
    "sheets": "spreadsheets and tables of text",
    "opendocument": "OpenDocument",
    "rtf": "Rich Text",
    "book": "books",
    "mail": "mail, and saved web pages",
    "html": "web pages",
    "markdown": "Markdown",
    "data": "JSON and XML",
    "text": "plain text, settings, logs and source code",
}


def make_table() -> str:
    """Return the table of supported formats, and that of formats to convert first."""
    endings: dict[str, list[str]] = defaultdict(list)
    for reader, media_types in our_formats().items():
        endings[reader.partition(":")[0]] += sorted(media_types)
    lines = ["| kind | endings |", "|---|---|"]
    for module, kind in KINDS.items():
        names = [f"`{ending}`{_extra(ending)}" for ending in endings.pop(module)]
        lines.append(f"| {kind} | {' '.join(names)} |")
    lines += [f"| {module} | {' '.join(names)} |" for module, names in endings.items()]
    instead: dict[str, list[str]] = defaultdict(list)
    for ending, words in SAVE_INSTEAD.items():
        instead[words].append(f"`{ending}`")
    lines += ["", "| ending | instead |", "|---|---|"]
    lines += [f"| {' '.join(names)} | {words} |" for words, names in instead.items()]
    return "\n".join(lines) + "\n"


def _extra(ending: str) -> str:
    return f" (extra `{EXTRAS[ending][1]}`)" if ending in EXTRAS else ""


def make_page(page: str) -> str:
    """Return the page with current tables."""
    before, _, tail = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{make_table()}\n{END}{tail.partition(END)[2]}"
