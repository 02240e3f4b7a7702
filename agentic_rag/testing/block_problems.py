"""The Messages API's rules for single content blocks; each problem starts with the path of its value.

Owns the shapes of blocks and their allowed places. Pure; knows no order of messages and no parameter.
"""

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

from agentic_rag.base.json_form import Json
from agentic_rag.testing import bindings

Place = Literal["user", "assistant", "tool_result", "system", "search_result"]
"""The place of a list of blocks, which decides the allowed block types."""

_USED_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")

IMAGE_BYTES: Final = 5 * 1024 * 1024
"""Maximum size of one image, as base64."""
IMAGE_SIDE: Final = 8_000
"""Maximum length of the longer side in pixels."""
_MAGIC: Final = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
_CITATIONS: Final = {
    "search_result_location": frozenset(
        {"cited_text", "search_result_index", "source", "title", "start_block_index", "end_block_index"}
    ),
    "char_location": frozenset(
        {"cited_text", "document_index", "document_title", "start_char_index", "end_char_index"}
    ),
    "page_location": frozenset(
        {"cited_text", "document_index", "document_title", "start_page_number", "end_page_number"}
    ),
    "content_block_location": frozenset(
        {"cited_text", "document_index", "document_title", "start_block_index", "end_block_index"}
    ),
    "web_search_result_location": frozenset({"cited_text", "encrypted_index", "title", "url"}),
}
_OPTIONAL_IN_CITATIONS: Final = frozenset({"type", "file_id"})

_KEYS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    name: (frozenset(required.split()), frozenset(optional.split()))
    for name, required, optional in (
        ("text", "text", "citations cache_control"),
        ("image", "source", "cache_control transformations"),
        ("document", "source", "title context citations cache_control"),
        ("search_result", "source title content", "citations cache_control"),
        ("thinking", "thinking signature", ""),
        ("redacted_thinking", "data", ""),
        ("tool_use", "id name input", "cache_control caller toolset_name"),
        ("tool_reference", "tool_name", "cache_control"),
        ("tool_result", "tool_use_id", "content is_error cache_control toolset_name"),
    )
}
"""Required and optional keys of each block type."""

_ALLOWED_IN: dict[Place, frozenset[str]] = {
    "user": frozenset({"text", "image", "document", "search_result", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
    "tool_result": frozenset({"text", "image", "document", "search_result", "tool_reference"}),
    "system": frozenset({"text"}),
    "search_result": frozenset({"text"}),
}


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


def _check_text(path: str, block: Json) -> Iterator[str]:
    yield from text_problems(f"{path}.text", block["text"])
    citations = block.get("citations")
    if citations is None:
        return
    if not isinstance(citations, list):
        yield f"{path}.citations: Input should be a valid list"
        return
    for index, citation in enumerate(citations):
        yield from _citation(f"{path}.citations.{index}", citation)


def _citation(path: str, citation: Any) -> Iterator[str]:
    kind = citation.get("type") if isinstance(citation, dict) else None
    required = _CITATIONS.get(str(kind))
    if required is None:
        yield f"{path}.type: Input should be one of {sorted(_CITATIONS)}"
        return
    for key in sorted(required - citation.keys()):
        yield f"{path}.{key}: Field required"
    for key in sorted(citation.keys() - required - _OPTIONAL_IN_CITATIONS):
        yield f"{path}.{key}: Extra inputs are not permitted"
    for key in sorted(required & citation.keys()):
        number = citation[key]
        if key.endswith("_index") and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            yield f"{path}.{key}: Input should be greater than or equal to 0"


def _check_source(path: str, block: Json) -> Iterator[str]:
    source = block["source"]
    if not isinstance(source, dict) or source.get("type") not in ("base64", "url", "file", "text", "content"):
        yield f"{path}.source.type: Input should be a known source"
    elif block["type"] == "image" and source["type"] == "base64":
        yield from _image(f"{path}.image.source.base64", source)


def _image(path: str, source: Json) -> Iterator[str]:
    data, kind = source.get("data"), source.get("media_type")
    if kind not in _MAGIC:
        yield f"{path}.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'"
    elif not isinstance(data, str) or not data:
        yield f"{path}.data: Input should be a valid string"
    elif len(data) > IMAGE_BYTES:
        yield f"{path}: image exceeds 5 MB maximum: {len(data)} bytes > {IMAGE_BYTES} bytes"
    else:
        try:
            raw = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            yield f"{path}.data: invalid base64 data"
            return
        if not raw.startswith(_MAGIC[kind]):
            yield f"{path}: Image does not match the provided media type {kind}"
        elif kind == "image/png" and max(_png_size(raw)) > IMAGE_SIDE:
            yield f"{path}.data: At least one of the image dimensions exceed max allowed size: {IMAGE_SIDE} pixels"
        elif kind == "image/png" and (min(_png_size(raw)) < 1 or raw[-8:-4] != b"IEND"):
            yield f"{path}.data: Could not process image"


def longer_side(block: Json) -> int:
    """Return the pixels of an image's longer side, 0 if unknown."""
    source = block["source"]
    if source.get("type") != "base64" or source.get("media_type") != "image/png":
        return 0
    return max(_png_size(base64.b64decode(source["data"][:64])))


def _png_size(raw: bytes) -> tuple[int, int]:
    return int.from_bytes(raw[16:20], "big"), int.from_bytes(raw[20:24], "big")


def _check_search_result(path: str, block: Json) -> Iterator[str]:
    for key in ("source", "title"):
        if not isinstance(block[key], str) or not block[key]:
            yield f"{path}.{key}: String should have at least 1 character"
    if block["content"] == []:
        yield f"{path}.content: List should have at least 1 item"
    yield from block_problems(f"{path}.content", block["content"], "search_result")
    citations = block.get("citations")
    if citations is not None and not (isinstance(citations, dict) and isinstance(citations.get("enabled"), bool)):
        yield f"{path}.citations.enabled: Input should be a valid boolean"


def _check_thinking(path: str, block: Json) -> Iterator[str]:
    if not isinstance(block["thinking"], str):
        yield f"{path}.thinking: Input should be a valid string"
    elif not bindings.fits(block["signature"], block["thinking"]):
        yield f"{path}: Invalid `signature` in `thinking` block"


def _check_redacted(path: str, block: Json) -> Iterator[str]:
    if not isinstance(block["data"], str) or not block["data"]:
        yield f"{path}.data: Invalid `data` in `redacted_thinking` block"


def _check_tool_use(path: str, block: Json) -> Iterator[str]:
    if not isinstance(block["id"], str) or not _ID.fullmatch(block["id"]):
        yield f"{path}.id: String should match pattern '^{_ID.pattern}$'"
    if not isinstance(block["name"], str) or not _USED_NAME.fullmatch(block["name"]):
        yield f"{path}.name: String should match pattern '^{_USED_NAME.pattern}$'"
    if not isinstance(block["input"], dict):
        yield f"{path}.input: Input should be a valid dictionary"


def _check_tool_reference(path: str, block: Json) -> Iterator[str]:
    if not isinstance(block["tool_name"], str) or not _USED_NAME.fullmatch(block["tool_name"]):
        yield f"{path}.tool_name: String should match pattern '^{_USED_NAME.pattern}$'"


def _check_tool_result(path: str, block: Json) -> Iterator[str]:
    if not isinstance(block["tool_use_id"], str) or not _ID.fullmatch(block["tool_use_id"]):
        yield f"{path}.tool_use_id: String should match pattern '^{_ID.pattern}$'"
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
    "tool_reference": _check_tool_reference,
    "tool_result": _check_tool_result,
}
