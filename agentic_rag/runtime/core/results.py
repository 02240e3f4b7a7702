"""Conversion of a tool's outcome to a block for the model and events for clients. Pure.

Owns the size limits of results, the payloads that are stored in full, the ``search_result`` blocks made from hits, and
the ``retrieval`` events.
"""

import base64
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from agentic_rag.base.events import EventBody, Retrieval, RetrievalHit, ToolResult, ToolStatus
from agentic_rag.base.json_form import Json, to_json, to_text
from agentic_rag.base.messages import (
    ACTIVATION,
    NAMED,
    OTHERS,
    PASSAGE,
    REF,
    RETRIEVALS,
    STRUCTURED,
    Activation,
    Block,
    Passage,
    PassageTable,
    clean_text,
    image_in_words,
    is_deep,
    kept_image,
    plain_text,
    text_block,
    tool_result_block,
)
from agentic_rag.models.profiles import SHORT_WINDOW, profile_of
from agentic_rag.tools.base import CallOutcome, ToolInfo
from agentic_rag.tools.image_headers import read_picture
from agentic_rag.tools.system import BY_NAME, LIST_DOCUMENTS, READ_RESULT, ResultReader

RESULT_BUDGET = 16 * 1024
"""UTF-8 bytes of a user server's text result that the model reads: the head and the tail."""
ROLE_BUDGET = 96 * 1024
"""Most UTF-8 bytes of an activated role; a longer one is cut at the end of a section."""
HITS_BUDGET = 48 * 1024
"""Most UTF-8 bytes of the passages of one call, the same limit as in the retriever's servers."""
MAX_FOUND = 6
"""Most matches of a searched text in one answer."""
AROUND = 200
"""Characters before and after each match."""
SNIPPET = 240
"""Most characters of a hit's snippet in a ``retrieval`` event."""

LEFT_OUT = "[{left} more passages were left out: there is no room. Ask for what follows the last one, or for fewer.]"
OTHERS_TEXT = "othersText"
"""Key in structured content of our own servers. True if the text contains words written by others than the user."""

# Before a Markdown heading or an opening tag, or after a tag: roles are written in both.
_SECTION = re.compile(r"\n(?=[ \t]*(?:#{1,6} |<[A-Za-z]))|(?<=>)\n")
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_LINE = re.compile(r"\n")


@dataclass(frozen=True, slots=True)
class ResultRoom:
    """Most UTF-8 bytes of one result for a model: a text of a user's server, a role, and passages."""

    text: int = RESULT_BUDGET
    role: int = ROLE_BUDGET
    hits: int = HITS_BUDGET

    @classmethod
    def of(cls, model: str) -> "ResultRoom":
        """Return the limits for a model.

        A short window gives an eighth of its size to a text and a quarter to the others.
        """
        window = profile_of(model).context_window
        if window is None or window >= SHORT_WINDOW:
            return ROOM
        return cls(min(RESULT_BUDGET, window // 2), min(ROLE_BUDGET, window), min(HITS_BUDGET, window))


ROOM = ResultRoom()


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """A payload that is stored in full outside the transcript, under a ref."""

    ref: str
    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """A finished call: the block for the transcript and the events for the log.

    ``size``: bytes of the whole text. ``kept``: payloads to store with the call, the text's first. ``ref``: the text's
    payload if the block has only a part of the text.
    """

    block: Block
    bodies: tuple[EventBody, ...]
    size: int = 0
    ref: str | None = None
    kept: tuple[StoredPayload, ...] = ()


def finished_call(
    call_id: str,
    name: str,
    tool: ToolInfo | None,
    arguments: Json,
    outcome: CallOutcome,
    new_ref: Callable[[], str] = str,
    *,
    ran: bool = True,
    room: ResultRoom = ROOM,
) -> FinishedCall:
    """Convert an outcome to its ``tool_result`` block and events. A ``retrieval`` event for hits comes first.

    ``ran``: the outcome is the server's, not a refusal of ours. ``room``: the model's limits for a result.
    """
    is_own = tool is not None and tool.origin != "user"
    blocks = _visible(outcome.content)
    # Measured before anything is cut.
    size = len(_paragraphs(blocks).encode())
    blocks, pictures = _keep_images(blocks, new_ref, shown=outcome.status is ToolStatus.OK)
    content, private, payloads = _own(name, blocks, outcome, room) if is_own else _users(blocks, outcome, new_ref, room)
    if ran and tool is not None and _brings_others(tool, outcome):
        private = private | {OTHERS: True}
    shown_text = _paragraphs(content) or "\n".join(map(_in_words, content))
    hits, source = _hits(name, outcome) if is_own else ((), "documents")
    if hits and source == "documents":
        note = outcome.structured.get("note")
        passages = [search_result_block(hit) for hit in outcome.structured["hits"]]
        # The passages replace the text of the result, which says the same without citations.
        content = _within(passages, room.hits)
        content[:0] = [text_block(clean_text(note))] if isinstance(note, str) and note.strip() else []
    content = [*content, *_evidence(name, outcome)] if is_own else content
    document_ids = _named_documents(name, outcome) if is_own else []
    if document_ids:
        private = private | {NAMED: document_ids}
    ids = _retrieval_ids(name, outcome) if is_own else []
    if ids:
        private = private | {RETRIEVALS: ids}
    result = ToolResult(
        tool_call_id=call_id,
        tool_name=name,
        server=tool.server if tool else "",
        status=outcome.status,
        content=shown_text,
        truncated=len(shown_text.encode()) < size or REF in private,
        duration_ms=outcome.duration_ms,
        ref=private.get(REF),
        structured=private.get(STRUCTURED),
    )
    searched = hits and (source == "memory" or "retrieval_id" in outcome.structured)
    found_by = ids[0] if ids else call_id
    retrieval = (Retrieval(found_by, source, _query(arguments), hits),) if searched else ()
    return FinishedCall(
        block=tool_result_block(call_id, content, is_error=outcome.status is not ToolStatus.OK) | private,
        bodies=(*retrieval, result),
        size=size,
        ref=private.get(REF),
        kept=payloads + pictures,
    )


def _paragraphs(blocks: Iterable[Block]) -> str:
    """Return the text blocks of a result as one text. Each is a paragraph."""
    return "\n\n".join(block["text"] for block in blocks if block["type"] == "text")


def _within(passages: list[Block], room: int) -> list[Block]:
    """Return the first passages within the limit, at least one, and a note on how many were left out."""
    sizes = accumulate(len(plain_text(passage["content"]).encode()) for passage in passages)
    count = max(1, sum(size <= room for size in sizes))
    omitted = len(passages) - count
    return passages[:count] + ([text_block(LEFT_OUT.format(left=omitted))] if omitted else [])


def _in_words(part: Block) -> str:
    return str(part["tool_name"]) if part["type"] == "tool_reference" else image_in_words(part)


def _keep_images(
    blocks: list[Block], new_ref: Callable[[], str], *, shown: bool
) -> tuple[list[Block], tuple[StoredPayload, ...]]:
    """Return the blocks with references to the images, and the images as payloads.

    An error result cannot have images, so there (``shown`` is False) they are described by text.
    """
    payloads: list[StoredPayload] = []
    content = []
    for block in blocks:
        if block["type"] == "image" and block["source"]["type"] == "base64":
            data = base64.b64decode(block["source"]["data"])
            picture = read_picture(data)
            size = (picture.width, picture.height) if picture else (0, 0)
            payloads.append(StoredPayload(new_ref(), block["source"]["media_type"], data))
            block = kept_image(payloads[-1].media_type, payloads[-1].ref, size)
        content.append(block if shown or block["type"] != "image" else text_block(image_in_words(block)))
    return content, tuple(payloads)


def _brings_others(tool: ToolInfo, outcome: CallOutcome) -> bool:
    """Return whether an outcome contains text written by others. An error of a user's server counts too."""
    if tool.origin == "user":
        return outcome.status in (ToolStatus.OK, ToolStatus.ERROR)
    if tool.name == READ_RESULT.name:  # a stored result came from a server, or was read before
        return outcome.status is ToolStatus.OK
    structured = outcome.structured if isinstance(outcome.structured, dict) else {}
    others_text = structured.get("hits") if _reader(tool.name) is ResultReader.HITS else structured.get(OTHERS_TEXT)
    return bool(others_text)


def _reader(name: str) -> ResultReader:
    return BY_NAME[name].reader if name in BY_NAME else ResultReader.NOTHING


def _own(
    name: str, blocks: list[Block], outcome: CallOutcome, room: ResultRoom
) -> tuple[list[Block], Block, tuple[StoredPayload, ...]]:
    """Cut the text of a role that one of our servers returned. Other results are limited by our servers themselves."""
    structured = outcome.structured
    activates = _reader(name) is ResultReader.ACTIVATION
    if activates and outcome.status is ToolStatus.OK and isinstance(structured, dict) and structured.get("hash"):
        private: Block = {ACTIVATION: to_json(Activation(str(structured.get("role")), structured["hash"]))}
        return _with_text(blocks, cut_at_section(plain_text(blocks), room.role)), private, ()
    return blocks, {}, ()


def _users(
    blocks: list[Block], outcome: CallOutcome, new_ref: Callable[[], str], room: ResultRoom
) -> tuple[list[Block], Block, tuple[StoredPayload, ...]]:
    """Limit a user server's result. A longer one is stored in full, so that the model can read the rest."""
    private: Block = {}
    payloads: tuple[StoredPayload, ...] = ()
    whole = _paragraphs(blocks)
    if len(whole.encode()) > room.text:
        ref = new_ref()
        payloads = (StoredPayload(ref, "text/plain", whole.encode()),)
        private[REF] = ref
        blocks = _with_text(blocks, head_and_tail(whole, ref, room.text))
    data = encode_structured(outcome.structured) if outcome.encoded is None else outcome.encoded
    if data is not None:
        if len(data) <= RESULT_BUDGET:
            private[STRUCTURED] = outcome.structured
        else:
            ref = new_ref()
            payloads += (StoredPayload(ref, "application/json", data),)
            private[STRUCTURED] = {REF: ref}
    return blocks, private, payloads


def encode_structured(structured: Any) -> bytes | None:
    """Return structured content as JSON, or None without content or if the content is nested too deep to store."""
    return None if structured is None or is_deep(structured) else to_text(structured).encode()


def head_and_tail(text: str, ref: str, room: int = RESULT_BUDGET) -> str:
    """Return three quarters of the limit from a text's head, one quarter from its tail, and how to read the middle."""
    head = first_bytes(text, room * 3 // 4)
    tail = last_bytes(text, room // 4)
    omitted = len(text) - len(head) - len(tail)
    where = f"characters {len(head)} to {len(head) + omitted} of {len(text)}"
    return f'{head}\n[… {where} left out; {READ_RESULT.name} with ref "{ref}" reads them …]\n{tail}'


def cut_at_section(text: str, budget: int) -> str:
    """Return a text cut at the last end of a section (or paragraph, or line) within the budget, with a mark."""
    head = first_bytes(text, budget)
    if len(head) == len(text):
        return text
    for boundary in (_SECTION, _PARAGRAPH, _LINE):
        ends = [match.start() for match in boundary.finditer(head)]
        # A boundary in the first half would lose more text than a cut within a section.
        if ends and ends[-1] > len(head) // 2:
            head = head[: ends[-1]]
            break
    return f"{head.rstrip()}\n\n[truncated: kept {len(head.rstrip())} of {len(text)} characters]"


def part_of(text: str, start: int, room: int = RESULT_BUDGET) -> str:
    """Return the characters of a stored result from ``start``, as many as one answer may have, and their range."""
    # A character has at least one byte. Slicing first encodes one part, not the whole result for each part.
    part = first_bytes(text[start : start + room], room)
    stop = start + len(part)
    rest = f"; go on with from {stop}" if stop < len(text) else ""
    return f"{part}\n[characters {start} to {stop} of {len(text)}{rest}]"


def passages_with(text: str, sought: str, start: int) -> str:
    """Return the surroundings of a text's first matches from ``start``, and where to continue the search.

    The search ignores case. Overlapping excerpts are joined.
    """
    # Not ``text.lower()``: lower case can be longer (``İ`` becomes two characters), and positions would be wrong.
    match_spans = [match.span() for match in re.compile(re.escape(sought), re.IGNORECASE).finditer(text, start)]
    if not match_spans:
        return f"[{sought!r} does not occur in characters {start} to {len(text)}, which is the end]"
    spans: list[tuple[int, int]] = []
    for first, last in match_spans[:MAX_FOUND]:
        before, after = max(0, first - AROUND), min(len(text), last + AROUND)
        if spans and before <= spans[-1][1]:
            before = spans.pop()[0]
        spans.append((before, after))
    parts = [f"[characters {before} to {after}]\n{text[before:after]}" for before, after in spans]
    remaining = match_spans[MAX_FOUND:]
    rest = f"; for the next go on with from {remaining[0][0]}" if remaining else ""
    return "\n".join(
        [
            *parts,
            f"[{len(match_spans) - len(remaining)} of {len(match_spans)} places, {len(text)} characters in all{rest}]",
        ]
    )


def first_bytes(text: str, count: int) -> str:
    """Return the longest beginning of a text with at most ``count`` UTF-8 bytes."""
    return text.encode()[:count].decode(errors="ignore")


def last_bytes(text: str, count: int) -> str:
    """Return the longest end of a text with at most ``count`` UTF-8 bytes."""
    return text.encode()[-count:].decode(errors="ignore")


def _named_documents(name: str, outcome: CallOutcome) -> list[str]:
    """Return the ids of the documents that a list of documents, or a note of our tools, names."""
    structured = outcome.structured if isinstance(outcome.structured, dict) else {}
    if name == LIST_DOCUMENTS.name:
        return [str(document["id"]) for document in structured.get("documents") or ()]
    return (
        [str(structured["document_id"])] if _reader(name) is ResultReader.HITS and "document_id" in structured else []
    )


def _retrieval_ids(name: str, outcome: CallOutcome) -> list[str]:
    """Return the ids of the stored searches behind a result: its own, or those of a delegate."""
    fields = outcome.structured if isinstance(outcome.structured, dict) else {}
    if _reader(name) is ResultReader.HITS:
        return [str(fields["retrieval_id"])] if fields.get("retrieval_id") else []
    return list(fields.get("retrievals") or ()) if _reader(name) is ResultReader.EVIDENCE else []


def _evidence(name: str, outcome: CallOutcome) -> list[Block]:
    """Return the passages of a delegate's result. An error has none, because the API allows only text there."""
    fields = outcome.structured if isinstance(outcome.structured, dict) and outcome.status is ToolStatus.OK else {}
    return list(fields.get("evidence") or ()) if _reader(name) is ResultReader.EVIDENCE else []


def _hits(name: str, outcome: CallOutcome) -> tuple[tuple[RetrievalHit, ...], Literal["documents", "memory"]]:
    structured = outcome.structured if isinstance(outcome.structured, dict) and outcome.status is ToolStatus.OK else {}
    if _reader(name) is ResultReader.HITS:
        return tuple(_document_hit(hit) for hit in structured.get("hits") or ()), "documents"
    if _reader(name) is ResultReader.ENGRAMS:
        engrams = structured.get("found") or structured.get("overview") or ()  # a recall without query
        return tuple(_memory_hit(engram) for engram in engrams), "memory"
    return (), "documents"


def search_result_block(hit: Json) -> Block:
    """Return the ``search_result`` block of a passage that was found or read, with one text block per sentence."""
    heading = " › ".join(hit.get("heading_path") or [])
    place = f" ({place_text})" if (place_text := _place(hit)) else ""
    name = hit["document_name"]
    return {
        "type": "search_result",
        "source": hit["document_id"],
        "title": clean_text(f"{name} › {heading}{place}" if heading else f"{name}{place}"),
        "content": [text_block(clean_text(sentence["text"])) for sentence in hit["sentences"]],
        "citations": {"enabled": True},
        PASSAGE: to_json(
            Passage(
                document_id=hit["document_id"],
                document_name=name,
                chunk_ids=tuple(sentence["chunk_id"] for sentence in hit["sentences"]),
                page=hit.get("page"),
                cells=hit.get("cells"),
                score=_score(hit),
                tables=_rows_of(hit) or None,
                scanned=True if hit.get("scanned") else None,
                scanned_by=hit.get("scanned_by") or None,
                document_date=hit.get("document_date"),
                review_by=hit.get("review_by"),
                source_uri=hit.get("source_uri"),
            )
        ),
    }


def _rows_of(hit: Json) -> tuple[PassageTable, ...]:
    """Return which sentences are rows of tables, without the header rows."""
    tables = (
        PassageTable(table["first"] + bool(table["has_header"]), table["last"], tuple(table["header"]))
        for table in hit.get("tables") or ()
        if table["header"]
    )
    return tuple(table for table in tables if table.first < table.last)


def _place(hit: Json) -> str:
    """Return the position of a passage, with which a model can ask for its surroundings."""
    places = [f"p. {hit['page']}" if hit.get("page") is not None else None, hit.get("cells")]
    if hit.get("scanned"):
        places.append(f"read from a scan{' by the model' if hit.get('scanned_by') == 'model' else ''}")
    places += [f"columns: {' | '.join(table['header'])}" for table in hit.get("tables") or () if _lacks_header(table)]
    if hit.get("passages"):
        places += [f"passage {hit.get('passage')} of {hit['passages']}", hit.get("date")]
    return "; ".join(str(place) for place in places if place)


def _lacks_header(table: Json) -> bool:
    return bool(table["header"]) and not table["has_header"]


def _query(arguments: Json) -> str:
    query = arguments.get("query")
    return query if isinstance(query, str) else ""


def _score(hit: Json) -> float:
    return float(hit["relevance_score"] if "relevance_score" in hit else hit.get("score") or 0.0)


def _document_hit(hit: Json) -> RetrievalHit:
    first = hit["sentences"][0]
    return RetrievalHit(
        id=first["chunk_id"],
        name=hit["document_name"],
        snippet=" ".join(sentence["text"] for sentence in hit["sentences"])[:SNIPPET],
        score=_score(hit),
        document_id=hit["document_id"],
        chunk_id=first["chunk_id"],
        page=hit.get("page"),
        cells=hit.get("cells"),
    )


def _memory_hit(engram: Json) -> RetrievalHit:
    cues = engram.get("cues") or []
    return RetrievalHit(
        id=str(engram["id"]),
        name=" ".join(cues[:3]) if cues else str(engram.get("type", "")),
        snippet=str(engram["content"])[:SNIPPET],
        score=float(engram.get("relevance", 0.0)),
        strength=float(engram.get("strength", 0.0)),
    )


def _visible(blocks: tuple[Block, ...]) -> list[Block]:
    """Return the blocks with cleaned text and without blank ones."""
    content = [{**block, "text": clean_text(block["text"])} if block["type"] == "text" else block for block in blocks]
    return [block for block in content if block["type"] != "text" or block["text"].strip()]


def _with_text(blocks: list[Block], text: str) -> list[Block]:
    """Return the blocks with one text in place of all their texts."""
    other_blocks = [block for block in blocks if block["type"] != "text"]
    return [text_block(text), *other_blocks] if text else other_blocks
