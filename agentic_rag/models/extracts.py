"""Summaries without a language model: extracts of the conversation, in the form that a compaction asks for.

Owns the detection of summary requests and the choice of sentences. Pure.
"""

import json
import re
from collections.abc import Iterator, Sequence

from agentic_rag.base.messages import Block, Message, plain_text, text_block
from agentic_rag.models.base import ModelRequest

MAX_EXTRACT = 200
"""Most characters that a summary takes from one message."""

_ASKED = re.compile(r"\s*Summari[sz]e the conversation\b")
_NOTE = "[note: "
_SENTENCE = re.compile(r".+?(?:[.!?。！？](?=\s|[\"”’)\]]|[^\x00-\x7f]|$)|$)", re.DOTALL)
_EARLIER = re.compile(r"\[summary of the earlier conversation\]\n(.*)", re.DOTALL)
_CARRIED = re.compile(r"\n?\[earlier messages of the user.*|\n?\[carried over: .*", re.DOTALL)
MAX_NAMED = 20
"""Most documents named by one fact."""
_LEFT_OUT = (_NOTE, "[earlier messages of the user", "[carried over:", "[continue]")

Extract = tuple[str, str, tuple[str, ...]]
"""One extract: its kind (``facts`` or ``wishes``), its text, and the documents that support the text."""


def asks_for_summary(request: ModelRequest) -> bool:
    """Whether a request asks for a summary, of its own conversation or of one given as material."""
    last = request.messages[-1]["content"][-1]
    noted = last["text"].removeprefix(_NOTE) if last["type"] == "text" and last["text"].startswith(_NOTE) else ""
    return bool(_ASKED.match(plain_text(request.system)) or _ASKED.match(noted))


def begins_later(messages: Sequence[Message]) -> bool:
    """Whether a request holds only the end of its conversation, because the rest was summarized or left out."""
    texts = (block["text"] for block in messages[0]["content"] if block["type"] == "text") if messages else ()
    return any(text.startswith(("[summary of the earlier", *_LEFT_OUT[1:])) for text in texts)


def summarize(request: ModelRequest) -> list[Block]:
    """Return the newest extracts of the conversation that fit in the token limit, as a JSON text block."""
    apart = _ASKED.match(plain_text(request.system)) is not None
    every = list(_of_material(request) if apart else _of_messages(request))
    budget = request.max_tokens * 2
    chosen: list[Extract] = []
    for extract in reversed(every):  # users ask most often about the newest messages
        budget -= len(json.dumps(extract, ensure_ascii=False).encode("utf-8", "replace"))
        if chosen and budget < 0:
            break
        chosen.insert(0, extract)
    summary = {
        "facts": [{"fact": words, "documents": list(named)} for kind, words, named in chosen if kind == "facts"],
        "wishes": [words for kind, words, _ in chosen if kind == "wishes"] or ([] if chosen else ["-"]),
    }
    return [text_block(json.dumps(summary, ensure_ascii=False))]


def _of_messages(request: ModelRequest) -> Iterator[Extract]:
    for message in request.messages:
        if message["role"] == "assistant":
            cited = [citation for block in message["content"] for citation in block.get("citations") or ()]
            yield from _extract("facts", plain_text(message["content"]), dict.fromkeys(c["source"] for c in cited))
            continue
        for block in message["content"] if message["role"] == "user" else ():
            if block["type"] == "text":
                yield from _of_user(block["text"])


def _of_material(request: ModelRequest) -> Iterator[Extract]:
    for line in plain_text(request.messages[-1]["content"]).splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict) and isinstance(words := message.get("text"), str):
            yield from _of_user(words) if message.get("role") == "user" else _extract("facts", words)


def _of_user(text: str) -> Iterator[Extract]:
    earlier = _EARLIER.match(text)
    if earlier is None:
        if not text.startswith(_LEFT_OUT):
            yield from _extract("wishes", text)
        return
    kind = "facts"  # a summary of a summary keeps the extracts unchanged
    for line in _CARRIED.sub("", earlier[1]).splitlines():
        if line.endswith(":") and not line.startswith("- "):
            kind = "wishes" if "wishes" in line else "facts"
        elif line.startswith("- "):
            words, named = _split_named(line[2:])
            yield kind, words, named


def _split_named(line: str) -> tuple[str, tuple[str, ...]]:
    """Return a fact's text, and the documents named in brackets behind the text."""
    named: list[str] = []
    while len(named) < MAX_NAMED and line.endswith("]"):
        words, _, inner = line[:-1].rpartition(" [")
        _, separator, rest = inner.partition(", document ")
        if not separator:
            break
        named.insert(0, rest.partition(",")[0])
        line = words
    return line, tuple(named)


def _extract(kind: str, text: str, documents: dict[str, None] | None = None) -> Iterator[Extract]:
    if sentence := _SENTENCE.match(" ".join(text.split())):
        words = sentence[0].strip()
        yield kind, words if len(words) <= MAX_EXTRACT else words[: MAX_EXTRACT - 1] + "…", tuple(documents or ())
