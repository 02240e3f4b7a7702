"""Converts the result of a tool to blocks of the Messages API.

Owns the conversion of MCP content. Pure: knows no connection, and does not truncate (the runtime does).
"""

import base64
import binascii
import json
import re
from collections.abc import Sequence
from typing import Any

import mcp_types as types
import orjson

from agentic_rag.base.messages import Block, clean_text, text_block
from agentic_rag.tools.image_headers import MAX_SIDE, read_picture

IMAGE_CHARS = 5 * 1024 * 1024
"""Characters of base64 that the Messages API accepts as one image."""

LARGE_BYTES = 64 * 1024
"""A larger result is read in a thread."""

NOISE_CHARS = 20_000
"""Longer texts are not searched for noise: no error is that long."""

_COUNTED = re.compile(r"^\d+ validation errors? for .+$", re.MULTILINE)
_FRAMES = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n?)*", re.MULTILINE)
_NOISE = re.compile(
    r" \[type=\w+, input_value=.*?, input_type=\w+\]|\n?[ \t]*For further information visit https://errors\.pydantic\.dev/\S*"
)
"""Details that pydantic adds to each problem's text."""


def to_blocks(content: list[types.ContentBlock], structured: Any = None) -> tuple[Block, ...]:
    """Return text and image blocks, never none and never a blank one.

    Without any visible content, the structured content is returned as JSON.
    """
    blocks = [block for block in map(_block, content) if block["type"] != "text" or block["text"].strip()]
    if not blocks and structured is not None:
        blocks = [text_block(clean_text(json.dumps(structured, ensure_ascii=False)))]
    return tuple(blocks) or (text_block("(no output)"),)


def without_noise(text: str) -> str:
    """Return a tool's error without details for programmers that libraries add: frames, types of errors, addresses."""
    if len(text) > NOISE_CHARS:
        return text
    return _NOISE.sub("", _FRAMES.sub("", _COUNTED.sub("The arguments do not fit:", text))).strip() or "It failed."


def clean_json(value: Any) -> Any:
    """Return a JSON value whose strings hold no lone surrogates and no NUL.

    A clean value is returned itself: encoding it once proves that it is clean, far faster than a walk.
    """
    try:
        if b"\\u0000" not in orjson.dumps(value):
            return value
    except TypeError:  # lone surrogates, keys that are not strings, very large numbers
        pass
    return _clean_items(value)


def is_large(content: Sequence[types.ContentBlock], structured: Any = None) -> bool:
    """Return whether a result is read in a worker thread: it has more than `LARGE_BYTES`, or cannot be measured."""
    try:
        return sum(map(_length, content)) + len(orjson.dumps(structured)) > LARGE_BYTES
    except TypeError:
        return True


def _length(block: types.ContentBlock) -> int:
    if isinstance(block, types.EmbeddedResource):
        resource = block.resource
        return len(resource.text if isinstance(resource, types.TextResourceContents) else resource.blob)
    if isinstance(block, types.ResourceLink):
        return len(str(block.uri)) + len(block.title or block.name) + len(block.description or "")
    return len(block.text if isinstance(block, types.TextContent) else block.data)


def _clean_items(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): _clean_items(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_items(item) for item in value]
    return value


def _block(block: types.ContentBlock) -> Block:
    if isinstance(block, types.TextContent):
        return text_block(clean_text(block.text))
    if isinstance(block, types.ImageContent):
        return _image(block.mime_type, block.data, "image")
    if isinstance(block, types.AudioContent):
        return text_block(f"[audio, {clean_text(block.mime_type)}, {_size(block.data)}: not shown]")
    if isinstance(block, types.ResourceLink):
        about = "".join(f" — {clean_text(text)}" for text in (block.title or block.name, block.description) if text)
        return text_block(f"[resource {clean_text(str(block.uri))}{about}]")
    resource = block.resource
    uri = clean_text(str(resource.uri))
    if isinstance(resource, types.TextResourceContents):
        return text_block(f"[resource {uri}]\n{clean_text(resource.text)}")
    media_type = resource.mime_type or ""
    if media_type.startswith("text/") or media_type == "application/json":
        text = _decode(_plain_base64(resource.blob)).decode(errors="replace")
        if text or not resource.blob:
            return text_block(f"[resource {uri}]\n{clean_text(text)}")
    return _image(media_type, resource.blob, f"resource {uri}")


def _image(media_type: str, data: str, label: str) -> Block:
    """Return an image that a model can see, typed by its content, or a text with the reason why it is not shown."""
    data = _plain_base64(data)
    picture = read_picture(_decode(data)) if len(data) <= IMAGE_CHARS else None
    if len(data) > IMAGE_CHARS:
        why = f"{IMAGE_CHARS // 1024 // 1024} MiB of base64 are the most"
    elif picture is None:
        why = "PNG, JPEG, GIF and WebP can be"
    elif max(picture.width, picture.height) > MAX_SIDE:
        why = f"{picture.width}×{picture.height} pixels, {MAX_SIDE} a side are the most"
    else:
        return {"type": "image", "source": {"type": "base64", "media_type": picture.media_type, "data": data}}
    return text_block(f"[{label}, {clean_text(media_type.strip()) or 'unknown type'}, {_size(data)}: not shown: {why}]")


def _plain_base64(data: str) -> str:
    """Return base64 without the line ends and the head of a ``data:`` URL, which many servers send."""
    if data.startswith("data:"):
        data = data.partition(",")[2]
    return "".join(data.split())


def _decode(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _size(data: str) -> str:
    return f"{len(data) * 3 // 4} bytes"
