"""What blocks and messages cost as requests hold them, and in memory. Pure.

Owns the counting: tokens are a third of the UTF-8 bytes, images by their pixels.
"""

import sys
from collections.abc import Iterable
from typing import Any

from agentic_rag.json_form import to_text
from agentic_rag.messages import SHED, SIZE, Block, Message, text_block, without_private
from agentic_rag.tools.pictures import Picture

SHED_MARK = "[result of {name}, kept as ref {ref}]"


def tokens_of(value: Any) -> int:
    """Return about how many tokens a JSON value costs; private keys are not sent and cost nothing."""
    return (len(to_text(without_private(value)).encode("utf-8", "replace")) + 2) // 3


def memory_of(value: Any) -> int:
    """Return about how many bytes a JSON value has in memory; what it shares with others counts, keys do not."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(map(memory_of, value.values()))
    return size + sum(map(memory_of, value)) if isinstance(value, list | tuple) else size


def message_tokens(message: Message) -> int:
    """Return about how many tokens a message costs as it is sent; images by their pixels."""
    sent = [as_sent(block) for block in message["content"]]
    return sum(map(tokens_of, sent)) + picture_tokens(sent) + 4


def pictures_in(content: Iterable[Block]) -> list[Picture]:
    """Return the images in some blocks, those inside results too, as requests hold them."""
    found = []
    for block in content:
        if block["type"] == "tool_result" and SHED not in block:
            found += pictures_in(block["content"])
        elif block["type"] == "image" and SIZE in block:
            found.append(Picture(block["source"]["media_type"], *block[SIZE]))
    return found


def picture_tokens(content: Iterable[Block]) -> int:
    """Return what the images in some blocks cost."""
    return sum(picture.tokens for picture in pictures_in(content))


def as_sent(block: Block) -> Block:
    """Return a block as requests hold it: a result that was left out is a mark."""
    shed = block.get(SHED)
    if shed is None:
        return block
    mark = text_block(SHED_MARK.format(name=shed["name"], ref=shed["ref"]))
    return {**{key: value for key, value in block.items() if key != SHED}, "content": [mark]}
