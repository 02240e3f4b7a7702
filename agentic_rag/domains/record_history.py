"""Turn a change of a domain's record into history texts: one for the settings, one for each MCP server.

The texts are readable JSON without secret values. Pure. The store's ``history`` module keeps the rows.
"""

import hashlib
import json

from agentic_rag.base.json_form import Json
from agentic_rag.base.redaction import Redaction
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.store.domains import DomainRecord
from agentic_rag.store.history import GONE, HistoryKind, NewHistory, VersionContent


def content_of(text: str, redaction: Redaction) -> VersionContent:
    """Return a text with its hash and without secrets."""
    clean_text = redaction(text)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return VersionContent(clean_text, digest, redacted=clean_text != text)


def record_changes(
    before: DomainRecord | None, after: DomainRecord, author: str, redaction: Redaction
) -> list[NewHistory]:
    """Return the changed settings and servers of a record. ``before`` is None for a new domain."""
    changes: list[NewHistory] = []
    at = "" if before is None else before.updated_at

    def add(kind: HistoryKind, subject: str, old: Json | None, new: Json | None) -> None:
        if old != new:
            was, is_now = (
                GONE if document is None else content_of(_text(document), redaction) for document in (old, new)
            )
            changes.append(
                NewHistory(kind=kind, subject=subject, author=author, after=is_now, before=was, before_at=at)
            )

    add(HistoryKind.SETTINGS, "", None if before is None else _settings(before), _settings(after))
    old, new = {} if before is None else _servers(before), _servers(after)
    for name in sorted(old.keys() | new.keys()):
        add(HistoryKind.SERVER, name, old.get(name), new.get(name))
    return changes


def _text(document: Json) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True)


def _settings(record: DomainRecord) -> Json:
    settings = {key: value for key, value in record.settings.items() if key != "mcpServers"}
    return {"name": record.name, "description": record.description, "settings": settings}


def _servers(record: DomainRecord) -> dict[str, Json]:
    return {name: entry.to_json() for name, entry in DomainSettings.model_validate(record.settings).mcp_servers.items()}
