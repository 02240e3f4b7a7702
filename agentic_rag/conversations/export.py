"""Write a conversation with its sources as Markdown, or as an HTML page for reading and printing. Pure.

The page runs no script and loads nothing. Its style is part of it.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

from agentic_rag.base.events import Reference
from agentic_rag.conversations.shown_messages import ShownMessage

ExportLanguage = Literal["en", "zh"]
_NOT_IN_MARKDOWN: Final = re.compile(r"[\s<>\\`]")
"""Characters of an address that Markdown would read as the end of the address or as markup."""

_WORDS: dict[str, dict[str, str]] = {
    "en": {
        "you": "Question",
        "answer": "Answer",
        "sources": "Sources",
        "page": "p. {}",
        "untitled": "Untitled",
        "stopped": "This answer was stopped.",
        "failed": "This answer failed: {}",
        "attachments": "Files attached to this question: {}",
        "images": "Images sent with this question: {}",
        "hidden": "The quoted passages are shown only to people who have access to these documents.",
        "scanned": "read from a scan",
        "scannedByModel": "read from a scan by the model",
    },
    "zh": {
        "you": "提问",
        "answer": "回答",
        "sources": "来源",
        "page": "第 {} 页",
        "untitled": "未命名",
        "stopped": "此回答已被停止。",
        "failed": "此回答失败：{}",
        "attachments": "此问题的附件：{}",
        "images": "随此问题发送的图片：{} 张",
        "hidden": "引用的原文仅对有权访问这些文档的人显示。",
        "scanned": "由扫描件识别",
        "scannedByModel": "由模型识别自扫描件",
    },
}


@dataclass(frozen=True, slots=True)
class ExportedConversation:
    """The parts of a conversation that an export shows. Without ``passages`` the quoted texts are left out."""

    title: str
    domain_name: str
    exported_at: str
    messages: Sequence[ShownMessage]
    language: ExportLanguage = "en"
    passages: bool = True

    @property
    def words(self) -> dict[str, str]:
        return _WORDS[self.language]

    @property
    def heading(self) -> str:
        return self.title or self.words["untitled"]


def to_markdown(exported: ExportedConversation) -> str:
    """Return a conversation as Markdown: a heading for each message, its text, and its numbered sources."""
    words = exported.words
    parts = [f"# {exported.heading}", f"{exported.domain_name} · {_minute(exported.exported_at)}"]
    for message in exported.messages:
        parts.append(f"## {words['you' if message.role == 'user' else 'answer']} · {_minute(message.created_at)}")
        parts += [part for part in (_with_marks(message), *_notes(exported, message)) if part]
        if message.references:
            parts.append(f"### {words['sources']}")
            parts.append("\n".join(_source_line(exported, reference) for reference in message.references))
    return "\n\n".join(parts) + "\n"


def _with_marks(message: ShownMessage) -> str:
    """Return a message's text with ``[n]`` at each citation."""
    pieces: list[str] = []
    at = 0
    for citation in sorted(message.citations, key=lambda item: item.end):
        pieces += message.content[at : citation.end], f" [{citation.number}]"
        at = citation.end
    return "".join([*pieces, message.content[at:]]).strip()


def _notes(exported: ExportedConversation, message: ShownMessage) -> list[str]:
    words = exported.words
    images = sum(block["type"] == "image" for block in message.blocks) if message.role == "user" else 0
    notes = [words["images"].format(images)] if images else []
    if message.attachments:
        notes.append(words["attachments"].format(", ".join(attachment.name for attachment in message.attachments)))
    if message.metadata.get("interrupted"):
        notes.append(words["stopped"])
    if error := message.metadata.get("error"):
        notes.append(words["failed"].format(error.get("code", "")))
    if message.references and not exported.passages:
        notes.append(words["hidden"])
    return notes


def _source_line(exported: ExportedConversation, reference: Reference) -> str:
    line = f"{reference.number}. {', '.join(_place(exported, reference))}"
    if exported.passages and reference.source_uri:
        line += f" <{_NOT_IN_MARKDOWN.sub(lambda match: quote(match[0]), reference.source_uri)}>"
    return f"{line}: “{_one_line(reference.cited_text)}”" if exported.passages and reference.cited_text else line


def _place(exported: ExportedConversation, reference: Reference) -> list[str]:
    words = exported.words
    page = None if reference.page is None else words["page"].format(reference.page)
    scanned = words["scannedByModel" if reference.scanned_by == "model" else "scanned"] if reference.scanned else None
    return [part for part in (reference.document_name, page, reference.cells, scanned) if part]


def _minute(at: str) -> str:
    """Return a time of the store for people: ``2026-11-26 10:47 UTC``."""
    return f"{at[:10]} {at[11:16]} UTC"


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


STYLE = """
:root { color-scheme: light dark; }
body { max-width: 44rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.6 Inter, system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin-bottom: 0; }
.about, time, .note { color: color-mix(in srgb, CanvasText 68%, Canvas); font-size: .85rem; }
.message { margin-top: 2rem; }
.message > h2 { font-size: .85rem; font-weight: 600; margin: 0 0 .25rem; }
.user { padding: .75rem 1rem; border-radius: .75rem; background: color-mix(in srgb, CanvasText 6%, Canvas); }
.user p { margin: 0; }
pre { overflow-x: auto; padding: .75rem; background: color-mix(in srgb, CanvasText 6%, Canvas); white-space: pre-wrap; }
code { font-size: .9em; }
table { border-collapse: collapse; }
th, td { padding: .25rem .75rem; text-align: start; }
th, td { border-bottom: 1px solid color-mix(in srgb, CanvasText 20%, Canvas); }
blockquote { margin-inline: 0; padding-inline-start: 1rem; border-inline-start: 3px solid GrayText; }
img { max-width: 100%; }
sup.citation { font-size: .75em; font-weight: 600; }
.sources { margin-top: 1rem; font-size: .85rem; }
.sources h3 { font-size: .85rem; margin: 0; }
.sources ol { margin: .25rem 0; padding-inline-start: 0; list-style: none; }
.sources q { color: color-mix(in srgb, CanvasText 68%, Canvas); }
.align-right { text-align: end; }
.align-center { text-align: center; }
@media print { body { margin: 0; max-width: none; font-size: 11pt; } .message { break-inside: auto; }
h2, h3 { break-after: avoid; } tr, pre, .sources li { break-inside: avoid; } }
"""


def to_page(exported: ExportedConversation) -> str:
    """Return a conversation as an HTML page that a browser can print or save as PDF."""
    from agentic_rag.conversations.message_html import to_html  # imported here, because it adds 0.1 s to a start

    words, body = exported.words, []
    for message in exported.messages:
        is_user = message.role == "user"
        text = to_html(message.content, message.citations, message.references, breaks=is_user)
        notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in _notes(exported, message))
        kind, name = ("user", words["you"]) if is_user else ("assistant", words["answer"])
        at = html.escape(message.created_at)
        body.append(
            f'<section class="message"><h2>{name} <time datetime="{at}">{_minute(message.created_at)}</time></h2>'
            f'<div class="{kind}">{_without_ids(text)}{notes}</div>{_sources(exported, message)}</section>'
        )
    title = html.escape(exported.heading)
    about = f"{html.escape(exported.domain_name)} · {_minute(exported.exported_at)}"
    return (
        f'<!doctype html>\n<html lang="{exported.language}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="robots" content="noindex"><meta name="referrer" content="no-referrer">'
        f"<title>{title}</title><style>{STYLE}</style></head>"
        f'<body><main><h1 dir="auto">{title}</h1><p class="about">{about}</p>{"".join(body)}</main></body></html>\n'
    )


def _without_ids(text: str) -> str:
    """Return a rendered text without the ids of documents and chunks, which mean nothing outside the server."""
    return re.sub(r' data-(?:document|chunk)="[^"]*"', "", text)


def _address(uri: str) -> str:
    """Return an address as HTML: a link if it is http or https."""
    escaped = html.escape(uri)
    # Another scheme, such as ``javascript:``, must not become a link.
    if not uri.lower().startswith(("http://", "https://")):
        return f"<code>{escaped}</code>"
    return f'<a href="{escaped}" rel="noopener noreferrer" target="_blank">{escaped}</a>'


def _sources(exported: ExportedConversation, message: ShownMessage) -> str:
    if not message.references:
        return ""
    lines = []
    for reference in message.references:
        place = html.escape(", ".join(_place(exported, reference)))
        if exported.passages and reference.source_uri:
            place = f"{place} ({_address(reference.source_uri)})"
        quote = (
            f": <q>{html.escape(_one_line(reference.cited_text))}</q>"
            if exported.passages and reference.cited_text
            else ""
        )
        lines.append(f"<li>[{reference.number}] {place}{quote}</li>")
    return f'<div class="sources"><h3>{exported.words["sources"]}</h3><ol>{"".join(lines)}</ol></div>'
