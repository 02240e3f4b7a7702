"""A conversation's title from its first message. Pure."""

import re

from agentic_rag.forms import one_line

MAX_CHARACTERS = 60
_SENTENCE = re.compile(r"[.!?]+(?=\s)|[。！？；…]+")


def title_of(content: str) -> str:
    """Return at most `MAX_CHARACTERS` of a message's beginning, ended at a sentence, else at a word.

    A text that is cut at a word, or within a sentence without spaces, ends with an ellipsis.
    """
    text = one_line(content) or "…"
    if len(text) <= MAX_CHARACTERS:
        return text
    ends = [found.end() for found in _SENTENCE.finditer(text, 0, MAX_CHARACTERS + 1) if found.end() <= MAX_CHARACTERS]
    if ends:
        return text[: ends[-1]]
    head = text[: MAX_CHARACTERS - 1]
    words = head.rsplit(" ", 1)[0]
    return (words if len(words) >= MAX_CHARACTERS // 2 else head).rstrip(" ,;:，、：") + "…"
