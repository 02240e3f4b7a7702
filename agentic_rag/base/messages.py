"""Values of the Messages API as the product stores and sends them, and pure functions over them.

Owns the shapes of content blocks and the rules that keep a transcript sendable. Knows no model client,
no store and no event.

Blocks are plain JSON objects, exactly as the API takes them, with one addition: a key that starts with
``_`` is the product's own. `without_private` removes those before a request leaves.
"""

import hashlib
import itertools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, NotRequired, TypedDict

from agentic_rag.base.ids import DocumentId
from agentic_rag.base.json_form import Absent, from_json

Role = Literal["user", "assistant", "system"]
"""``system`` in requests only: instructions inside the conversation, of which the store knows as notes (`NOTE`)."""

Block = dict[str, Any]
"""One content block: ``{"type": "text" | "thinking" | "redacted_thinking" | "tool_use" | "tool_result" | …}``."""


class Message(TypedDict):
    """One message of a transcript; ``content`` is never a bare string."""

    role: Role
    content: list[Block]


class ToolSpec(TypedDict):
    """A tool as the model sees it."""

    name: str
    description: str
    input_schema: dict[str, Any]
    cache_control: NotRequired[dict[str, str]]
    defer_loading: NotRequired[bool]


SHOWN_BEFORE: Final = "[already shown above, cite it there]"
"""First line of the text that stands for repeated passages of a result; their titles follow, one a line."""

# Members of blocks that are the product's own: what later steps need and no model is sent

PASSAGE: Final = "_passage"
"""Of a ``search_result``: the `Passage` that a citation of it is tied to."""
REFERENCES: Final = "_references"
"""Of a text: the verified citations in it, as `agentic_rag.base.events.Reference`."""
ACTIVATION: Final = "_role"
"""Of a ``tool_result``, or of the text that stands for one: the role it activated, as `Activation`."""
REF: Final = "_ref"
"""Of a ``tool_result``: where its whole text is kept. In structured content, alone: what the object is kept under."""
SIZE: Final = "_size"
"""Of an image that is kept: ``[width, height]`` in pixels."""
STRUCTURED: Final = "_structured"
"""Of a ``tool_result``: the server's structured content."""
SHED: Final = "_shed"
"""Of a ``tool_result`` that requests leave out: ``{"name", "ref"}`` for the mark that stands there."""
SAID: Final = "_said"
"""Of the text that a compaction left: the user's messages in it, verbatim."""
SOURCES: Final = "_sources"
"""Of a summary: for each fact and document it rests on ``{"fact", "document", "name", "chunks"}``."""
NOTE: Final = "_note"
"""Of a text in a user's message that is not the user's: the server's own word to the model."""
CUT: Final = "_cut"
"""Of what answers a message that was cut off at its length limit: the step goes on."""
CONTINUES: Final = "_continues"
"""Of a text: it goes on exactly where the step before it was cut off."""
DOWN: Final = "_down"
"""Of a note: names of the servers that it says cannot be called."""
GONE: Final = "_gone"
"""Of a note: ids of the deleted documents that it names."""
REFUSED: Final = "_refused"
"""Of a question that its model declined to answer: no later request holds that turn."""
MADE_BY: Final = "_model"
"""Of thinking: the model whose it is, by the name it was asked by; no other is sent it."""
BROKEN_INPUT: Final = "_broken_input"
"""Of a ``tool_use``: its arguments as they came, when they are not a JSON object."""
OTHERS: Final = "_others"
"""Of a ``tool_result``: it holds text of others (documents, users' servers, shared memories), which may give orders."""
RETRIEVALS: Final = "_retrievals"
"""Of a ``tool_result``: ids of the stored searches that it came from."""
CALLED: Final = "_called"
"""Of a ``tool_use``: the name as the model wrote it, when the API would not take that name back."""
SECRET: Final = "_secret"
"""Of a ``tool_use``: its arguments held a secret, so that it must not run."""


@dataclass(frozen=True, slots=True)
class PassageTable:
    """Sentences ``first`` to below ``last`` of a passage that are rows below this header."""

    first: int
    last: int
    header: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """Where the sentences of a ``search_result`` come from: ``chunk_ids[i]`` holds the block's ``content[i]``.

    ``cells``: rows of a sheet, such as ``Rates!A2:D9``.
    """

    document_id: DocumentId
    document_name: str
    chunk_ids: tuple[str, ...]
    page: int | None = None
    cells: str | None = None
    score: float = 0.0
    agent: Absent[str] = None
    """Path of the delegate that found it; None: the agent in whose transcript it stands."""
    tables: Absent[tuple[PassageTable, ...]] = None
    scanned: Absent[bool] = None
    """True: OCR read it from a scan."""

    @classmethod
    def of(cls, block: Block) -> "Passage | None":
        """Return the passage of a block, None when it has none."""
        return from_json(cls, block[PASSAGE]) if PASSAGE in block else None


@dataclass(frozen=True, slots=True)
class Activation:
    """A role that was activated, and the hash of its text then."""

    role: str
    hash: str

    @classmethod
    def of(cls, block: Block) -> "Activation | None":
        """Return the activation of a block, None when it activated nothing."""
        return from_json(cls, block[ACTIVATION]) if ACTIVATION in block else None


def text_block(text: str) -> Block:
    """Return a text block; blank text is the caller's mistake (the API refuses it)."""
    return {"type": "text", "text": text}


@dataclass(frozen=True, slots=True)
class KeptImage:
    """An image that a user sent: kept under ``ref``, its size in pixels and (``size``) in bytes."""

    ref: str
    media_type: str
    width: int
    height: int
    size: int
    sha256: str


def question_blocks(text: str, images: Collection[KeptImage] = ()) -> list[Block]:
    """Return the blocks of a user's message: its images, then its words, if it has any."""
    if not images:
        return [text_block(text)]
    shown = [kept_image(each.media_type, each.ref, (each.width, each.height)) for each in images]
    return [*shown, text_block(text)] if text.strip() else shown


def user_message(text: str, images: Collection[KeptImage] = ()) -> Message:
    """Return a user message of one text block, after the images that were sent with it."""
    return {"role": "user", "content": question_blocks(text, images)}


def tool_result_block(tool_use_id: str, content: list[Block], *, is_error: bool = False) -> Block:
    """Return a ``tool_result``; an empty result says so in words, since a blank one is refused."""
    block: Block = {
        "type": "tool_result",
        "tool_use_id": tool_use_id,
        "content": content or [text_block("(no output)")],
    }
    if is_error:
        block["is_error"] = True
    return block


def kept_image(media_type: str, ref: str, size: tuple[int, int]) -> Block:
    """Return an image as the transcript holds it: its bytes are kept under ``ref``, requests hold them."""
    return {"type": "image", "source": {"type": "kept", "media_type": media_type, "ref": ref}, SIZE: list(size)}


def ref_of_image(block: Block) -> str | None:
    """Return where the bytes of an image are kept, None for any other block."""
    return block["source"]["ref"] if block["type"] == "image" and block["source"]["type"] == "kept" else None


def refs_of_images(messages: Iterable[Message]) -> frozenset[str]:
    """Return where the images of messages are kept; those of results that are left out are not among them."""
    blocks = [block for message in messages for block in message["content"]]
    results = [block for block in blocks if block["type"] == "tool_result" and SHED not in block]
    parts = [part for block in results for part in block["content"]]
    return frozenset(ref for each in (*blocks, *parts) if (ref := ref_of_image(each)))


def has_kept_image(block: Block) -> bool:
    """Tell whether a block is an image that is kept, or a result with one."""
    if block["type"] == "tool_result":
        return any(map(has_kept_image, block["content"]))
    return ref_of_image(block) is not None


def image_in_words(block: Block) -> str:
    """Return the words for an image that is kept."""
    width, height = block[SIZE]
    source = block["source"]
    return f"[image, {source['media_type']}, {width}×{height} pixels, kept as ref {source['ref']}]"


def plain_text(content: Iterable[Block]) -> str:
    """Return the text of all text blocks, joined without separator (a block is a span, not a paragraph)."""
    return "".join(block["text"] for block in content if block.get("type") == "text")


def is_words(message: Message) -> bool:
    """Tell whether a message is text and nothing else: no call, result, image or thinking, no citation or private key.

    Most are; whoever looks for any of those need look no further.
    """
    for block in message["content"]:
        if len(block) != 2 or block["type"] != "text":
            return False
    return bool(message["content"])


def tool_uses(content: Iterable[Block]) -> list[Block]:
    """Return the ``tool_use`` blocks in order."""
    return [block for block in content if block.get("type") == "tool_use"]


def reads_others(messages: Iterable[Message]) -> bool:
    """Tell whether any of these messages holds a result with text of others."""
    return any(OTHERS in block for message in messages for block in message["content"])


def without_private(value: Any) -> Any:
    """Return a deep copy of a JSON value without keys that start with ``_``."""
    if isinstance(value, dict):
        return {key: without_private(item) for key, item in value.items() if not key.startswith("_")}
    if isinstance(value, list):
        return [without_private(item) for item in value]
    return value


def results_first(message: Message) -> Message:
    """Return a user's message with tool results at its head, where the API wants them: the same if so they are.

    After an interrupt the next user's text lands beside them.
    """
    content = message["content"]
    ordered = sorted(content, key=lambda block: block.get("type") != "tool_result") if len(content) > 1 else content
    return message if ordered == content else {"role": message["role"], "content": ordered}


def whole_content(blocks: Iterable[Block]) -> list[Block]:
    """Return what is stored of a whole assistant message: no blank text, no thinking at its end.

    The API refuses both when they come back. What is blank between two texts begins the second: a reader saw it there,
    and a citation of the first ends before it.
    """
    kept: list[Block] = []
    blank = ""
    for block in blocks:
        is_text = block["type"] == "text"
        if is_text and not block["text"].strip():
            blank += block["text"]
            continue
        between = blank and is_text and kept and kept[-1]["type"] == "text"
        kept.append({**block, "text": blank + block["text"]} if between else block)
        blank = ""
    while kept and kept[-1]["type"] in ("thinking", "redacted_thinking"):
        kept.pop()
    return kept


SENDABLE: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names and ids of calls that every endpoint takes back (the API takes names of up to 128 such characters)."""
_UNSENDABLE: Final = re.compile(r"[^a-zA-Z0-9_-]")
SHOWN_CHARS: Final = 200
"""How much is kept of a name that cannot be sent."""
INPUT_DEPTH: Final = 100
"""Arguments that are nested deeper count as broken: neither the stores nor the API take any depth."""


def sendable_use(block: Block, used: Collection[str]) -> Block:
    """Return a ``tool_use`` in a form that can be sent back: name, id and input as the API takes them.

    The API refuses a request whose history holds any other name, a repeated id or an input that is no object, and a
    model may write all of them; the conversation would be refused for ever. ``used``: ids of earlier calls.
    """
    name, ident, given = block["name"], block["id"], block["input"]
    fixed: Block = {}
    if not isinstance(name, str) or not SENDABLE.fullmatch(name):
        called = clean_text(str(name)[:SHOWN_CHARS])
        fixed |= {"name": _fit(called) or "unnamed", CALLED: called}
    if not isinstance(ident, str) or not SENDABLE.fullmatch(ident) or ident in used:
        fixed["id"] = _new_id(str(ident), used)
    if not isinstance(given, dict) and not is_deep(given):
        fixed |= {"input": {}, BROKEN_INPUT: clean_text(repr(given)[:SHOWN_CHARS])}
    return bounded_use({**block, **fixed} if fixed else block)


def bounded_use(block: Block) -> Block:
    """Return a ``tool_use`` whose input may be walked by recursion; one that is nested too deep is left out."""
    if not is_deep(block["input"]):
        return block
    return {**block, "input": {}, BROKEN_INPUT: f"[nested deeper than {INPUT_DEPTH} levels]"}


def _fit(text: str) -> str:
    return _UNSENDABLE.sub("_", text[:40])


def _new_id(ident: str, used: Collection[str]) -> str:
    """Return an id that is sendable and not used yet, the same one for the same arguments."""
    candidates = (
        f"{_fit(ident)}_{hashlib.sha256(f'{count} {ident}'.encode('utf-8', 'replace')).hexdigest()[:16]}"
        for count in itertools.count()
    )
    return next(found for found in candidates if found not in used)


def is_deep(value: Any) -> bool:
    """Tell whether a JSON value is nested deeper than `INPUT_DEPTH`."""
    level = [value]
    for _ in range(INPUT_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def kept_of_partial(blocks: Iterable[Block]) -> list[Block]:
    """Return what may stay of an assistant message that was cut off, possibly nothing.

    Non-blank text stays, the open block's included, and so does signed thinking that text follows.
    Unsigned thinking goes, and so does every ``tool_use``: none of them ran.
    """
    return whole_content(
        block
        for block in blocks
        if block["type"] in ("text", "redacted_thinking") or (block["type"] == "thinking" and block.get("signature"))
    )


def clean_json(value: Any) -> Any:
    """Return a JSON value whose texts are clean."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {key: clean_json(item) for key, item in value.items()}
    return [clean_json(item) for item in value] if isinstance(value, list | tuple) else value


def clean_text(text: str) -> str:
    """Return text without lone surrogates and NUL, which neither the API nor the stores take."""
    if text.isascii() and "\x00" not in text:
        return text
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "")
