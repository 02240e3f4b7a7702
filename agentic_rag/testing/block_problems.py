"""What the Messages API refuses in a single content block.

Owns the keys, value rules and wording for each block type, and the signature the stand-ins put under thinking.
Knows nothing of the order of blocks and messages: see `problems`.
"""

import hashlib
import re
from collections.abc import Iterator
from typing import Any, Literal

JSON = dict[str, Any]

Place = Literal["user", "assistant", "tool_result", "system", "search_result"]
"""Where a list of blocks stands: it decides which types may be in it."""

_USED_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")

_KEYS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    name: (frozenset(required.split()), frozenset(optional.split()))
    for name, required, optional in (
        ("text", "text", "citations cache_control"),
        ("image", "source", "cache_control"),
        ("document", "source", "title context citations cache_control"),
        ("search_result", "source title content", "citations cache_control"),
        ("thinking", "thinking signature", ""),
        ("redacted_thinking", "data", ""),
        ("tool_use", "id name input", "cache_control caller toolset_name"),
        ("tool_result", "tool_use_id", "content is_error cache_control toolset_name"),
    )
}
"""Required and optional keys of each block type."""

_ALLOWED_IN: dict[Place, frozenset[str]] = {
    "user": frozenset({"text", "image", "document", "search_result", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
    "tool_result": frozenset({"text", "image", "document", "search_result"}),
    "system": frozenset({"text"}),
    "search_result": frozenset({"text"}),
}


def sign(thinking: str) -> str:
    """Return the signature under which the stand-ins stream this thinking, and which they accept back."""
    return "sig-" + hashlib.sha256(b"stand-in:" + thinking.encode("utf-8", "surrogatepass")).hexdigest()


def text_problems(path: str, text: Any) -> Iterator[str]:
    if not isinstance(text, str):
        yield f"{path}: Input should be a valid string"
    elif not text:
        yield f"{path}: text content blocks must be non-empty"
    elif not text.strip():
        yield f"{path}: text content blocks must contain non-whitespace text"


def block_problems(path: str, blocks: Any, place: Place) -> Iterator[str]:
    if not isinstance(blocks, list):
        yield f"{path}: Input should be a valid list"
        return
    for index, block in enumerate(blocks):
        yield from _block(f"{path}.{index}", block, place)


def _block(path: str, block: Any, place: Place) -> Iterator[str]:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind not in _ALLOWED_IN[place]:
        yield f"{path}.type: Input should be one of {sorted(_ALLOWED_IN[place])}"
        return
    required, optional = _KEYS[kind]
    for key in sorted(block.keys() - required - optional - {"type"}):
        yield f"{path}.{key}: Extra inputs are not permitted"
    missing = sorted(required - block.keys())
    for key in missing:
        yield f"{path}.{key}: Field required"
    if not missing:
        yield from _CHECKS[kind](path, block)


def _check_text(path: str, block: JSON) -> Iterator[str]:
    yield from text_problems(f"{path}.text", block["text"])
    citations = block.get("citations")
    if citations is not None and not (
        isinstance(citations, list) and all(isinstance(item, dict) and "type" in item for item in citations)
    ):
        yield f"{path}.citations: Input should be a list of citations"


def _check_source(path: str, block: JSON) -> Iterator[str]:
    source = block["source"]
    if not isinstance(source, dict) or source.get("type") not in ("base64", "url", "file", "text", "content"):
        yield f"{path}.source.type: Input should be a known source"


def _check_search_result(path: str, block: JSON) -> Iterator[str]:
    for key in ("source", "title"):
        if not isinstance(block[key], str) or not block[key]:
            yield f"{path}.{key}: String should have at least 1 character"
    if block["content"] == []:
        yield f"{path}.content: List should have at least 1 item"
    yield from block_problems(f"{path}.content", block["content"], "search_result")
    citations = block.get("citations")
    if citations is not None and not (isinstance(citations, dict) and isinstance(citations.get("enabled"), bool)):
        yield f"{path}.citations.enabled: Input should be a valid boolean"


def _check_thinking(path: str, block: JSON) -> Iterator[str]:
    if not isinstance(block["thinking"], str):
        yield f"{path}.thinking: Input should be a valid string"
    elif block["signature"] != sign(block["thinking"]):
        yield f"{path}: Invalid `signature` in `thinking` block"


def _check_redacted(path: str, block: JSON) -> Iterator[str]:
    if not isinstance(block["data"], str) or not block["data"]:
        yield f"{path}.data: Invalid `data` in `redacted_thinking` block"


def _check_tool_use(path: str, block: JSON) -> Iterator[str]:
    if not isinstance(block["id"], str) or not _ID.fullmatch(block["id"]):
        yield f"{path}.id: String should match pattern '^{_ID.pattern}$'"
    if not isinstance(block["name"], str) or not _USED_NAME.fullmatch(block["name"]):
        yield f"{path}.name: String should match pattern '^{_USED_NAME.pattern}$'"
    if not isinstance(block["input"], dict):
        yield f"{path}.input: Input should be a valid dictionary"


def _check_tool_result(path: str, block: JSON) -> Iterator[str]:
    if not isinstance(block["tool_use_id"], str):
        yield f"{path}.tool_use_id: Input should be a valid string"
    failed = block.get("is_error")
    if failed is not None and not isinstance(failed, bool):
        yield f"{path}.is_error: Input should be a valid boolean"
    content = block.get("content")
    if isinstance(content, str):
        yield from text_problems(f"{path}.content", content)
    elif content is not None:
        yield from block_problems(f"{path}.content", content, "tool_result")
        if failed and any(isinstance(item, dict) and item.get("type") != "text" for item in content):
            yield f"{path}.content: all content must be type `text` if `is_error` is true"


_CHECKS = {
    "text": _check_text,
    "image": _check_source,
    "document": _check_source,
    "search_result": _check_search_result,
    "thinking": _check_thinking,
    "redacted_thinking": _check_redacted,
    "tool_use": _check_tool_use,
    "tool_result": _check_tool_result,
}
