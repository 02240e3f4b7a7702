"""What the extractive model answers when it is asked for a summary: extracts, in order. Pure.

Owns how such a request is recognised (by its prompt alone, as any model would) and which sentences are kept. The
conversation is one JSON object a line.
"""

import json
import re
from collections.abc import Iterator

from agentic_rag.messages import Block, plain_text, text_block
from agentic_rag.models.base import ModelRequest

MAX_EXTRACT = 200
"""Characters kept of one message."""

_ASKED = re.compile(r"\s*Summari[sz]e the conversation\b")
_SENTENCE = re.compile(r".+?(?:[.!?。！？](?=\s|[\"”’)\]]|[^\x00-\x7f]|$)|$)", re.DOTALL)
_EARLIER = re.compile(r"\[summary of the earlier conversation\]\n(.*)", re.DOTALL)
_CARRIED = re.compile(r"\n?\[earlier messages of the user.*|\n?\[carried over: .*", re.DOTALL)


def summary(request: ModelRequest) -> list[Block] | None:
    """Return the summary a request asks for; None when it asks for something else."""
    if request.tools or not _ASKED.match(plain_text(request.system)):
        return None
    lines = list(_extracts("\n".join(plain_text(message["content"]) for message in request.messages)))
    budget = request.max_tokens * 3
    kept: list[str] = []
    for line in reversed(lines):  # what was said last is most likely to be asked about
        budget -= len(line.encode("utf-8", "replace")) + 1
        if kept and budget < 0:
            break
        kept.insert(0, line)
    return [text_block("\n".join(kept) or "-")]


def _extracts(text: str) -> Iterator[str]:
    for line in text.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if not isinstance(said, dict) or not isinstance(said.get("text"), str):
            continue
        words = said["text"]
        earlier = _EARLIER.match(words)
        if earlier:  # a summary of a summary keeps its extracts as they are
            yield from (part for part in _CARRIED.sub("", earlier[1]).splitlines() if part.startswith(("? ", "- ")))
            continue
        extract = _first_sentence(words)
        if extract:
            yield ("? " if said.get("role") == "user" else "- ") + extract


def _first_sentence(text: str) -> str:
    found = _SENTENCE.match(" ".join(text.split()))
    sentence = found[0].strip() if found else ""
    return sentence if len(sentence) <= MAX_EXTRACT else sentence[: MAX_EXTRACT - 1] + "…"
