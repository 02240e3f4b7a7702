"""The extractive model, which quotes passages instead of writing text. The default without a language model.

The class implements `Model` and sees only the prompt, messages and tool schemas. The model calls the offered tools
(activate, recall, search; or remember) and answers with at most three quotes, each with its citation. The search
decides whether the documents answer the question. This module chooses the sentences by the words they share with the
question. Everything except the class is pure, and the same request always gives the same answer.
"""

import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import anyio.lowlevel

from agentic_rag.base.events import Usage
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import (
    SHOWN_BEFORE,
    Block,
    Message,
    ToolSpec,
    plain_text,
    text_block,
    tool_uses,
    without_private,
)
from agentic_rag.models.base import (
    BlockStarted,
    BlockStopped,
    Citation,
    CitationDelta,
    MessageCompleted,
    MessageStarted,
    ModelEvent,
    ModelRequest,
    TextDelta,
)
from agentic_rag.models.extracts import asks_for_summary, summarize
from agentic_rag.tools import system
from mcp_servers.folding import fold

NAME = "extractive"
ACTION, RECALL, REMEMBER = system.ACTION.name, system.RECALL.name, system.REMEMBER.name
SEARCH, DELEGATE = system.SEARCH.name, system.DELEGATE.name
MAX_QUERY, MAX_REASON, MAX_KEYWORDS, MAX_FOLLOWED, MAX_PASSAGES, MAX_QUOTES, MAX_ITEMS = 1_000, 200, 8, 3, 10, 3, 8
ENOUGH, CLOSE, MEMORY_FLOOR = 0.3, 0.62, 0.4
"""Thresholds, as shares of the question's weight.

`ENOUGH`: the smallest share that a sentence must match. `CLOSE`: the smallest share of a second quote, relative to the
best one. `MEMORY_FLOOR`: the smallest share that a memory must match, because recall does not search by meaning.
"""
SURE = 0.75
"""Share from which one sentence is a complete answer. With a smaller share, this passage and the next are quoted."""
MAX_MEANT = 2
"""Most passages that are quoted if the search found them by meaning alone."""
FOLLOWING = 3
"""Sentences that are quoted after one that matches a part of the question: the answer mostly follows its subject."""
ORDER = 0.3
"""Bonus of the first search hit, added to the share of the question that its best sentence matches."""
MAX_QUOTED = 1_500
"""Longest passage that is quoted completely, in characters."""

Language = Literal["zh", "en"]


class ExtractiveModel:
    """A `models.base.Model` without a language model. Never fails and needs no network."""

    name = NAME

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Open one call; see `models.base.Model.stream`."""
        async with aclosing(_events(request)) as events:
            yield events

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


async def _events(request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
    blocks = decide(request)
    yield MessageStarted(NAME)
    for index, block in enumerate(blocks):
        if block["type"] == "tool_use":
            yield BlockStarted(index, {**block, "input": {}})
        else:
            yield BlockStarted(index, {"type": "text", "text": ""})
            for piece in pieces(block["text"]):
                # Let other tasks run between deltas, as they do while a real model streams.
                await anyio.lowlevel.checkpoint()
                yield TextDelta(index, piece)
            for raw in block.get("citations", ()):
                place = raw["search_result_index"], raw["start_block_index"], raw["end_block_index"]
                yield CitationDelta(index, Citation(*place, raw["cited_text"], raw))
        yield BlockStopped(index, block)
    calls = any(block["type"] == "tool_use" for block in blocks)
    # The model uses no tokens. A count would look like a cost.
    yield MessageCompleted("tool_use" if calls else "end_turn", Usage())


def pieces(text: str, words: int = 3) -> list[str]:
    """Cut a text into deltas of a few words. Joined, they give the text again."""
    parts = re.findall(r"\s*\S{1,24}|\s+", text)
    return ["".join(parts[start : start + words]) for start in range(0, len(parts), words)]


def _tokens_of(value: Any) -> int:
    """Estimate the number of tokens as the runtime does: bytes of JSON divided by three."""
    return (len(json.dumps(without_private(value), ensure_ascii=False).encode("utf-8", "replace")) + 2) // 3


def decide(request: ModelRequest) -> list[Block]:
    """Return the blocks of the next assistant message: either only ``tool_use`` blocks, or only text blocks."""
    if asks_for_summary(request):
        return summarize(request)
    state = read(request)
    return _calls(state, request) or _cut(_reply(state), request.max_tokens)


def _cut(blocks: list[Block], max_tokens: int) -> list[Block]:
    """Return the blocks that fit. The first one always stays, because an answer is never empty."""
    sizes = itertools.accumulate(_tokens_of([block]) for block in blocks)
    return blocks[: max(1, sum(size <= max_tokens for size in sizes))]


# Tool calls


def _calls(state: "State", request: ModelRequest) -> list[Block]:
    choice = request.tool_choice or {}
    if choice.get("type") == "none":
        return []
    offered = {tool["name"]: tool for tool in request.tools}
    if choice.get("type") == "tool" and choice["name"] in offered:
        forced = _forced_call(offered[choice["name"]], state.question)
        used = {use["id"] for message in request.messages for use in tool_uses(message["content"])}
        ident = _new_id(used, choice["name"], state.question)
        return [] if forced is None else [{"type": "tool_use", "id": ident, **forced}]
    plan = [
        (name, arguments)
        for name, values in _plan(state)
        if name in offered and (arguments := _fit(offered[name], values)) is not None
    ]
    if any(name == ACTION for name, _ in plan):
        # Activate the role before the search, because the role may change the search. Recall needs only its name.
        plan = [(name, arguments) for name, arguments in plan if name in (ACTION, RECALL)]
    ids = {use["id"] for message in request.messages for use in tool_uses(message["content"])}
    blocks: list[Block] = []
    for name, arguments in plan[:1] if choice.get("disable_parallel_tool_use") else plan:
        blocks.append({"type": "tool_use", "id": _new_id(ids, name, state.question), "name": name, "input": arguments})
        ids.add(blocks[-1]["id"])
    return blocks


def _forced_call(tool: ToolSpec, question: str) -> Json | None:
    """Return name and input of a call that the request demands: each required text holds the question.

    Returns None if the tool needs something else than a text or a choice.
    """
    schema, values = tool["input_schema"], {}
    for name in schema.get("required") or ():
        wanted = (schema.get("properties") or {}).get(name) or {}
        if wanted.get("enum"):
            values[name] = wanted["enum"][0]
        elif wanted.get("type", "string") == "string":
            values[name] = question[: min(MAX_QUERY, wanted.get("maxLength", MAX_QUERY))]
        else:
            return None
    return {"name": tool["name"], "input": values}


def _plan(state: "State") -> Iterator[tuple[str, Json]]:
    """Yield the remaining calls of this turn, each with all possible arguments."""
    if state.role and state.activate:
        yield ACTION, {"role": state.role}
    if state.to_remember:
        if REMEMBER not in state.called:
            yield REMEMBER, {"role": state.role, "engrams": [_engram(state.to_remember)]}
        return
    words = content_words(state.question)
    if RECALL not in state.called:
        # PromptX compares cues exactly, and this model saves its cues in lower case.
        cues = dict.fromkeys([*words, *(word.lower() for word in words)])
        yield RECALL, {"role": state.role, "query": " ".join(cues)[:MAX_QUERY]}
    if SEARCH not in state.called and not state.small_talk and not _writes_roles(state):
        yield SEARCH, {"query": " ".join([state.question, *content_words(state.before)])[:MAX_QUERY]}


def _writes_roles(state: "State") -> bool:
    return state.role.lower() == "nuwa"


def _engram(content: str) -> Json:
    """Return a memory with keywords for recall. PromptX refuses fewer than two."""
    keywords = list(dict.fromkeys(word.lower() for word in content_words(content)))[:MAX_KEYWORDS]
    spare = ("备忘", "记忆") if language_of(content) == "zh" else ("note", "memory")
    keywords += [word for word in spare if word not in keywords][: max(0, 2 - len(keywords))]
    return {"content": content, "schema": "\n".join(keywords), "strength": 0.8, "type": "ATOMIC"}


def _fit(tool: ToolSpec, values: Json) -> Json | None:
    """Return the non-empty values that the tool's schema declares, or None if a required one is missing."""
    declared = tool["input_schema"].get("properties") or {}
    arguments = {}
    for name, value in values.items():
        if value and name in declared:
            limit = declared[name].get("maxLength")
            arguments[name] = value[:limit] if isinstance(value, str) and isinstance(limit, int) else value
    return arguments if set(tool["input_schema"].get("required") or ()) <= set(arguments) else None


def _new_id(ids: Collection[str], name: str, question: str) -> str:
    """Return a call id that the request does not use yet. The same request always gives the same id."""
    keys = (f"{number}\0{name}\0{question}".encode("utf-8", "replace") for number in itertools.count(len(ids)))
    return next(ident for key in keys if (ident := f"toolu_x{hashlib.sha256(key).hexdigest()[:23]}") not in ids)


# Reading a request


@dataclass(frozen=True, slots=True)
class Passage:
    """A search hit: its title, its sentences, and its index among all hits of the request."""

    title: str
    texts: tuple[str, ...]
    index: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """The parsed content of one request.

    ``before``: the earlier questions that a follow-up refers to.
    ``small_talk``: the key of the phrase that answers small talk, else empty.
    ``activate``: the role must be activated now.
    ``called``: the tools called in this turn. Their results are ``hits`` (None: no search was made), ``memories`` and
    ``problems`` (tool and reason).
    ``by_meaning``: the search was semantic, so a hit need not share a word with the question.
    ``noticed``: an earlier answer already holds the notice about the missing language model.
    """

    question: str
    before: str
    language: Language
    small_talk: str
    to_remember: str
    role: str
    activate: bool
    called: frozenset[str]
    hits: tuple[Passage, ...] | None
    memories: tuple[str, ...]
    problems: tuple[tuple[str, str], ...]
    by_meaning: bool
    noticed: bool


def read(request: ModelRequest) -> State:
    """Parse a request: the user's newest message, and the tool results since."""
    messages = request.messages
    start = next((place for place in reversed(range(len(messages))) if _has_words(messages[place])), len(messages))
    notes, question = _split_notes(messages[start]) if start < len(messages) else ("", "")
    prompt = "\n".join(block.get("text", "") for block in request.system)
    results = {block["tool_use_id"]: (block, hits) for block, hits in _results(messages)}
    uses = [(place > start, use) for place, message in enumerate(messages) for use in tool_uses(message["content"])]
    hits: tuple[Passage, ...] | None = None
    memories: list[str] = []
    problems: list[tuple[str, str]] = []
    by_meaning = False
    for name, ident in [(use["name"], use["id"]) for current, use in uses if current]:
        result, result_hits = results.get(ident, (None, ()))
        content = result.get("content", "") if result else ""
        text = content if isinstance(content, str) else plain_text(content)
        if result is None or result.get("is_error"):
            problems.append((name, next(filter(None, map(str.strip, text.splitlines())), "no result")[:MAX_REASON]))
        elif name == RECALL:
            memories += memories_in(text)
        elif name == SEARCH or (name == DELEGATE and result_hits):
            hits = (hits or ()) + result_hits
            by_meaning = by_meaning or "and meaning" in text
            hits = () if "match is weak" in text else hits
    activations = [(current, use) for current, use in uses if use["name"] == ACTION]
    arguments = activations[-1][1].get("input") if activations else None
    last_role = str(arguments.get("role") or "") if isinstance(arguments, dict) else ""
    done = any((answer := results.get(use["id"])) and not answer[0].get("is_error") for _, use in activations)
    earlier = [_split_notes(each)[1] for each in messages[:start] if _has_words(each)]
    language = language_of(question if any(map(str.isalpha, question)) else prompt)
    said = (plain_text(each["content"]) for each in messages if each["role"] == "assistant")
    return State(
        question=question,
        before=_before(question, earlier),
        language=language,
        small_talk=_small_talk(question),
        to_remember=instruction_to_remember(question),
        role=match[1] if (match := _ROLE.search(f"{notes}\n{prompt}")) else last_role,
        activate=(ACTION in notes or (ACTION in prompt and not done)) and not any(now for now, _ in activations),
        called=frozenset(use["name"] for current, use in uses if current),
        hits=hits,
        memories=tuple(dict.fromkeys(memories)),
        problems=tuple(problems),
        by_meaning=by_meaning,
        noticed=any(phrases["notice"] in text for text in said for phrases in _PHRASES.values()),
    )


def _has_words(message: Message) -> bool:
    return message["role"] == "user" and bool(plain_text(message["content"]).strip())


def _split_notes(message: Message) -> tuple[str, str]:
    """Return the notes of a message and the user's words: the last text block without the notes at its beginning."""
    *notes, words = [block["text"] for block in message["content"] if block["type"] == "text" and block["text"].strip()]
    if head := _NOTE.match(words):
        notes.append(head[1])
        words = words[head.end() :]
    return "\n".join(notes), words.strip()


def _results(messages: Sequence[Message]) -> Iterator[tuple[Block, tuple[Passage, ...]]]:
    """Yield all tool results in order, each with its hits. Hits are numbered over the whole request.

    If a result only names a hit that an earlier result showed, the earlier hit is used.
    """
    by_title: dict[str, list[Passage]] = {}
    count = itertools.count()
    for block in (block for message in messages for block in message["content"]):
        content = block.get("content") if block["type"] == "tool_result" else [block]
        hits: list[Passage] = []
        for part in content if isinstance(content, list) else ():
            if part["type"] == "search_result":
                texts = tuple(each["text"] for each in part["content"])
                hits.append(Passage(part["title"], texts, next(count), part["source"]))
                by_title.setdefault(part["title"], []).append(hits[-1])
            elif part["type"] == "text" and part["text"].startswith(SHOWN_BEFORE):
                for title in part["text"].split("\n")[1:]:
                    hits += by_title.get(title, ())
        if block["type"] == "tool_result":
            yield block, tuple(hits)


def memories_in(text: str) -> list[str]:
    """Return the contents of the memories in the text of a recall.

    PromptX writes ``- [ATOMIC 0.8 2026-11-22 id] content (cue · cue)``, where the content may have several lines. In
    other formats, each list item is a memory. The keyword map above the memories is skipped.
    """
    if _MEMORY.search(text):
        items = _MEMORY.split(text)[1:]
        items[-1:] = items[-1].split("\n\n")[:1]
        contents = [_CUES.sub("", item.rstrip()) for item in items]
    else:
        contents = [part.split("\n")[0] for part in _BULLET.split(text)[1:]]
    return [" ".join(content.split()) for content in contents if content.strip()]


def _small_talk(question: str) -> str:
    return next((key for key, pattern in _SMALL_TALK.items() if pattern.fullmatch(question)), "")


def instruction_to_remember(text: str) -> str:
    """Return the text that a message asks to remember, else "" (also for "do you remember …?")."""
    match = _REMEMBER.fullmatch(text.strip())
    content = (match["en"] or match["zh"]).strip() if match else ""
    return "" if _NOT_TO_REMEMBER.match(content) and content.endswith(("?", "？")) else content


def _before(question: str, earlier: Sequence[str]) -> str:
    """Return the earlier questions that a follow-up refers to, oldest first."""
    questions: list[str] = []
    for previous in reversed(earlier):
        if len(questions) == MAX_FOLLOWED or not _follows_up(question):
            break
        if not _small_talk(previous) and not instruction_to_remember(previous):
            questions.insert(0, previous)
            question = previous
    return " ".join(questions)


def _follows_up(question: str) -> bool:
    """Whether a question depends on an earlier one: almost no words, or few words and one that refers back."""
    size = sum(len(word) / 2 if _CJK_RUN.match(word) else 1 for word in content_words(question))
    return size <= 1 or (size <= 5 and bool(_OPENER.match(question) or _POINTER.search(question)))


# Quotes


def _reply(state: State) -> list[Block]:
    phrases = _PHRASES[state.language]
    lines = [phrases.get(f"failed {name}", phrases["failed"]).format(reason) for name, reason in state.problems]
    failed = {name for name, _ in state.problems}
    if state.to_remember:
        if REMEMBER not in failed:
            lines.append(phrases["saved" if REMEMBER in state.called else "no memory"].format(state.to_remember))
        return [text_block("\n\n".join(lines))]
    if state.small_talk or _writes_roles(state):
        return [text_block(phrases[state.small_talk or "roles"])]
    wanted = question_terms(state.question, state.before)
    memories = _fitting_memories(wanted, state.memories)
    quotes = _quotes(state, wanted)
    lines += [phrases["memory"].format(memory) for memory in memories]
    if quotes:
        lines.append(phrases["summary" if _SUMMARY.search(state.question) else "also" if memories else "quotes"])
    elif not memories and state.hits is not None:
        lines.append(phrases["nothing"])
    elif not memories and SEARCH not in failed:
        lines.append(phrases["unsearched"])
    notice = [] if state.noticed else [text_block(f"\n\n{phrases['notice']}")]
    return ([text_block("\n\n".join(lines))] if lines else []) + quotes + notice


def rate(wanted: Mapping[str, float], passage: Passage) -> list[float]:
    """Return, for each sentence, the matched share of the question's weight, 0..1.

    Terms in the title or in a table's header count in part.
    """
    total = sum(wanted.values()) or 1.0
    title = terms(passage.title)
    own = [terms(sentence) for sentence in passage.texts]
    ratings = []
    for index, here in enumerate(own):
        header = own[_table_header(passage.texts, index)]
        foot = bool(title) and all(term in title or term.isdigit() or term in ("page", "of") for term in here)
        shares = (1.0 if term in here else 0.6 if term in title or term in header else 0.0 for term in wanted)
        held = sum(weight * share for weight, share in zip(wanted.values(), shares, strict=True)) / total
        alone = not any(term in here for term in wanted)
        ratings.append(held * (0.2 if foot else 0.5 if alone else 1.0))  # a running head or foot is no answer
    return ratings


@dataclass(frozen=True, slots=True)
class _Choice:
    """The best sentence of a hit, by its index, the share of the question that it matches, and the matched terms."""

    hit: Passage
    sentence: int
    share: float
    terms: frozenset[str]


def _quotes(state: State, wanted: Mapping[str, float]) -> list[Block]:
    """Quote the sentences that answer: those of one passage, or of one passage for each part of a comparison."""
    hits = [hit for hit in (state.hits or ())[:MAX_PASSAGES] if any(text.strip() not in _EMPTY for text in hit.texts)]
    if _SUMMARY.search(state.question):
        best_of_document = {hit.source: hit for hit in reversed(hits)}
        openings = [_quote_blocks(hit, range(1)) for hit in hits if best_of_document[hit.source] is hit]
        return [block for opening in openings[:MAX_QUOTES] for block in opening]
    chosen: list[_Choice] = []
    parts = _parts(state.question)
    for part in parts if len(parts) > 1 else ():  # each from another passage
        rest = [hit for hit in hits if hit not in [choice.hit for choice in chosen]]
        best = _rank_hits(question_terms(part, state.before), rest, state.by_meaning)[:1]
        chosen += [choice for choice in best if choice.share >= ENOUGH or choice.hit in hits[:MAX_MEANT]]
    chosen = chosen or _complementary(_rank_hits(wanted, hits, state.by_meaning))
    return [block for choice in chosen for block in _quote_blocks(choice.hit, _span(choice))]


def _complementary(ranked: Sequence[_Choice]) -> list[_Choice]:
    """Return the best choice, and others nearly as good that match further terms, unless the best is complete."""
    if not ranked or ranked[0].share < ENOUGH:
        return list(ranked[:MAX_MEANT])
    chosen = [ranked[0]]
    for choice in ranked[1:] if ranked[0].share < SURE else ():
        is_new = not any(choice.terms <= other.terms for other in chosen)
        if is_new and choice.share >= CLOSE * ranked[0].share and len(chosen) < MAX_QUOTES:
            chosen.append(choice)
    return chosen


def _parts(question: str) -> list[str]:
    """Return the parts of a question that compares or asks for several things, or the whole question."""
    parts = [part for part in _SEVERAL.split(question) if part.strip() and question_terms(part)]
    return parts if 1 < len(parts) <= MAX_QUOTES else [question]


def _rank_hits(wanted: Mapping[str, float], hits: Sequence[Passage], by_meaning: bool) -> list[_Choice]:
    """Return the best sentence of each hit, best first, or nothing if no hit answers.

    The order of the search counts too, because the search compares meanings. If no sentence shares enough words with
    the question, this order decides alone.
    """
    weights = _by_rarity(wanted, hits)
    choices: list[_Choice] = []
    for hit in hits:
        ratings = rate(weights, hit)
        best = ratings.index(max(ratings))
        matched = (terms(hit.title) | terms(hit.texts[best])) & weights.keys()
        choices.append(_Choice(hit, best, ratings[best], frozenset(matched)))
    if max((choice.share for choice in choices), default=0.0) < ENOUGH:
        return choices if by_meaning else []
    worth = {choice.hit.index: choice.share + ORDER / (1 + rank) for rank, choice in enumerate(choices)}
    return sorted(choices, key=lambda choice: -worth[choice.hit.index])


def _span(choice: _Choice) -> Sequence[int]:
    """Return the indexes of the sentences to quote: the best one, with the sentences needed to understand it."""
    texts, index = choice.hit.texts, choice.sentence
    if choice.share < ENOUGH:  # found by meaning: no sentence is known to answer
        sizes = itertools.accumulate(map(len, texts))
        return range(max(1, sum(size <= MAX_QUOTED for size in sizes)))
    header = _table_header(texts, index)
    if header != index:
        return [header, index]
    end = index + 1
    if texts[index].rstrip().endswith((":", "：")):
        while end < len(texts) and end - index <= MAX_ITEMS and _ITEM.match(texts[end]):
            end += 1
        return range(index, end)
    if choice.share < SURE:  # the answer may stand beside the words of the question
        return range(max(index - 1, 0), min(index + 1 + FOLLOWING, len(texts)))
    return range(index, end)


def _quote_blocks(hit: Passage, span: Sequence[int]) -> list[Block]:
    """Return one text block for each run of sentences, with a citation in the form of the Messages API."""
    blocks, size = [], 0
    for _, run in itertools.groupby(enumerate(span), lambda pair: pair[1] - pair[0]):
        places = [place for _, place in run]
        shown = ""
        for place in places:
            sentence = " ".join(hit.texts[place].split())
            size += len(sentence)
            if size > MAX_QUOTED and shown:
                places = list(range(places[0], place))
                break
            line = CELLS in sentence or _ITEM.match(sentence) is not None
            shown += ("\n> " if shown and line else " " if shown else "") + sentence
        citation = {
            "type": "search_result_location",
            "source": hit.source,
            "title": hit.title,
            "search_result_index": hit.index,
            "start_block_index": places[0],
            "end_block_index": places[-1] + 1,
            "cited_text": "".join(hit.texts[places[0] : places[-1] + 1]),
        }
        blocks.append({"type": "text", "text": f"\n\n> {shown}", "citations": [citation]})
    return blocks


def _table_header(sentences: Sequence[str], index: int) -> int:
    """Return the index of the table header above a row, or ``index`` if the sentence is not a table row."""
    header = index
    while CELLS in sentences[index] and header > 0 and CELLS in sentences[header - 1]:
        header -= 1
    return header


def _fitting_memories(wanted: Mapping[str, float], memories: Sequence[str]) -> list[str]:
    ratings = rate(_by_rarity(wanted, [Passage("", tuple(memories))]), Passage("", tuple(memories)))
    best = max(ratings, default=0.0)
    fitting = [pair for pair in zip(ratings, memories, strict=True) if pair[0] >= max(MEMORY_FLOOR, CLOSE * best)]
    return [memory for _, memory in sorted(fitting, key=lambda pair: -pair[0])][:MAX_QUOTES]


def _by_rarity(wanted: Mapping[str, float], hits: Sequence[Passage]) -> dict[str, float]:
    """Weigh each term by its rarity among the sentences.

    Pairs of ideographs that occur in no sentence are dropped, unless no term occurs at all. Most pairs are not words,
    and pairs that span two words of a question would make an answered question look unanswered.
    """
    own = [terms(sentence) | terms(hit.title) for hit in hits for sentence in hit.texts]
    frequency = Counter(term for each in own for term in each if term in wanted)
    count = len(own)
    if frequency:
        wanted = {term: weight for term, weight in wanted.items() if frequency[term] or not _CJK_RUN.match(term)}
    return {
        term: weight * math.log(1 + (count + 1) / (frequency[term] + 0.5)) * (2 if any(map(str.isdigit, term)) else 1)
        for term, weight in wanted.items()
    }


# Words


def question_terms(text: str, before: str = "") -> dict[str, float]:
    """Return the terms of a question with their weights. Terms of the earlier questions count half."""
    earlier = dict.fromkeys(terms(_ASKING.sub(" ", before)), 0.5)
    return earlier | dict.fromkeys(terms(_ASKING.sub(" ", fold(text).text)), 1.0)


def terms(text: str) -> set[str]:
    """Return the comparable terms of a text: stems, codes and the parts of codes, and pairs of ideographs."""
    found: set[str] = set()
    for token in _TOKEN.findall(fold(text).text):
        if _CJK_RUN.match(token):
            found.update(map("".join, itertools.pairwise(token)) if len(token) > 1 else [token])
        elif token not in _STOP:
            found.add(stem(token.removesuffix("'s")))
            if any(map(str.isdigit, token)):
                found.update(part for part in re.split(r"[.,:/-]", token) if len(part) > 1)
    return found


@lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """Return a crude stem of an English word, equal for most of its inflections. Other words mostly stay unchanged."""
    if len(word) < 4 or not word.isalpha() or not word.isascii():
        return word
    for suffix, instead in _SUFFIXES:
        if word.endswith(suffix) and not word.endswith(("ss", "us", "is")) and len(word) - len(suffix) >= 3:
            word = word[: -len(suffix)] + instead
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sl":
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word[-1] in "ey" else word


def language_of(text: str) -> Language:
    """Return ``zh`` if at least a third of the letters are Chinese (one character is about a word), else ``en``."""
    wide = sum(map(len, _CJK_RUN.findall(text)))
    return "zh" if wide and wide * 3 >= len(re.findall(r"[^\W\d_]", text)) else "en"


def is_stop_word(word: str) -> bool:
    """Whether a folded word, or a pair of CJK characters, tells nothing about a text's subject."""
    return word in _STOP or all(character in _LIGHT for character in word)


def content_words(text: str) -> list[str]:
    """Return the significant words of a text in order, without duplicates: words, and CJK runs between particles."""
    words: dict[str, None] = {}
    for token in _TOKEN.findall(text):
        if _CJK_RUN.match(token):
            words.update(
                (piece, None) for piece in re.split(f"{_ASKING.pattern}|{_PARTICLES}", token) if len(piece) > 1
            )
        elif token.lower() not in _STOP and (len(token) > 1 or token.isdigit()):
            words[token] = None
    return list(words)


CELLS = " | "
"""Separator between the cells of a table row."""
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_CJK_RUN = re.compile(rf"[{CJK}]+")
_TOKEN = re.compile(rf"[{CJK}]+|[^\W_{CJK}]+(?:['’.,:/-][^\W_{CJK}]+)*")
_STOP_WORDS = """
a about all am an and any are as at be been being but by can could did do does doing done for from get gets got
    had has have having he her hers him his how i if in into is it its just may me might must my no not of off on or our
    per please shall she should so some such than that the their them then there these they this those to too us use
    very was we were what when where which who whom whose why will with would you your yours much many long often also
    tell say says said know need want like happen happens mean means give find let der die das den dem des ein eine
    einer und oder ist sind wird werden wie was wer wo wann welche welcher welches darf kann muss man im in am zu zum
    zur von für auf mit bei
"""
_STOP = frozenset(_STOP_WORDS.split())
_ASKING = re.compile(
    "请问|告诉我|什么时候|为什么|怎么办|怎么样|是多少|有多少|多少|什么|怎么|怎样|如何|哪些|哪个|哪里|哪儿|多久|多长|何时|谁|哪|几"
    "|我们|你们|他们|可以|能否|是否|是不是|有没有|应该|需要|一下|还是|或者|如果|关于|吗|呢|吧|啊|请|的|了"
)
_PARTICLES = "[是在和与把被就都也我你他她它有]"
_LIGHT = frozenset(
    "一不个为也了些人会但你来做到去及又吗呢和在多大她它对就很您我把或所才把时是最有次没的着能被要让该说跟过还这那都与于之其而且后前上下里中以从"
)
_SUFFIXES = (("ations", ""), ("ation", ""), ("ments", ""), ("ment", ""), ("ings", ""), ("ing", ""), ("ied", "y"),
             ("ies", "y"), ("sses", "ss"), ("ed", ""), ("ly", ""), ("es", "e"), ("s", ""))  # fmt: skip
_SMALL_TALK = {
    "greeting": re.compile(
        r"(?:hi|hello|hey|good (?:morning|evening|day)|hallo|你好|您好|嗨|早上好)[\s!,.。！，]*", re.I
    ),
    "thanks": re.compile(r"(?:many )?(?:thanks|thank you|thx|danke|谢谢|多谢)[\w ]{0,16}[你您了]?[\s!,.。！]*", re.I),
    "about": re.compile(
        r"(?:(?:who|what) are you|what(?:'s| is) your name|what can you do(?: for me)?|how do you work"
        r"|introduce yourself"
        r"|are you (?:an? )?(?:ai|human|robot|bot|person|claude|chatgpt|gpt|llm|language model)|which model are you"
        r"|(?:你好[，,！!\s]*)?[你您](?:是谁|是什么|叫什么(?:名字)?|能做什么|会做什么))[\s?？。.!！]*",
        re.I,
    ),
}
_OPENER = re.compile(
    r"\s*(?:and|but|so|or|also|then|what about|how about|und|aber)\b|\s*(?:那么?|还有|以及|它|这个|那个)"
    r"|.*呢[？?。\s]*$",
    re.I | re.S,
)
_POINTER = re.compile(
    r"\b(?:it|its|that|this|they|them|those|these|one|there|sie|es|das|dort)\b|它|这个|那个|这样", re.I
)
_SUMMARY = re.compile(r"\bsummar(?:y|i[sz]e)|\boverview\b|zusammenfass|fass\w* .*zusammen|总结|概括|摘要", re.I)
_SEVERAL = re.compile(r"[,;:?!，；：？！]\s*(?:and\b|und\b)?|\b(?:and|und|sowie|versus)\b|[和与、]|还是|以及", re.I)
_ROLE = re.compile(ACTION + r"[^\n]{0,200}?\brole\b[^\n\"“”'`]{0,40}[\"“'`]([\w][\w.-]{0,63})[\"”'`]")
_REMEMBER = re.compile(
    r"(?:(?:please|could you|can you|would you|and)[\s,]+){0,3}(?:remember|memori[sz]e|don't forget|keep in mind)"
    r"(?:\s+(?:that|this|please))?\s*[:,，：]?\s+(?P<en>.+)"
    r"|(?:请|麻烦|你|您|帮我|帮忙|务必|要){0,4}(?:记住|记下来?|记一下|牢记)(?:一下)?[\s:：,，]*(?P<zh>.+)",
    re.IGNORECASE | re.DOTALL,
)
_NOT_TO_REMEMBER = re.compile(r"(?:when|how|what|who|where|why|me|to)\b|了[吗么]|吗", re.IGNORECASE)
_NOTE = re.compile(r"\s*((?:\[note:[^\n]*\]\s*\n\s*)+)(?=\S)", re.IGNORECASE)
_MEMORY = re.compile(r"^- \[[A-Z]+ [\d.]+(?: \d{4}-\d\d-\d\d [^\]\n]*)?\] ", re.MULTILINE)
_BULLET = re.compile(r"^[ \t]*(?:[-*•]|\d+[.)])\s+", re.MULTILINE)
_CUES = re.compile(r"\([^()]*\)\Z")
_ITEM = re.compile(r"\s*(?:[-*•·–]\s|\(?\d{1,3}[.)、]|[（(]?[一二三四五六七八九十]+[)）、])")
_EMPTY = ("", "[removed]")

_PHRASES: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "quotes": "The documents say:",
        "also": "And the documents say:",
        "summary": "A summary needs a language model. The documents begin like this where they fit best:",
        "memory": "From memory: {}",
        "nothing": "I found nothing in the documents that answers this. Other words may find it.",
        "unsearched": "I have no documents to search here, and nothing in memory answers this.",
        "greeting": "Hello! Ask me something, and I will quote what the documents say about it.",
        "thanks": "You are welcome.",
        "about": "I am the extractive mode of this server: I search the documents and quote the sentences that "
        "fit best, but no language model is configured. Set ANTHROPIC_API_KEY for Claude, name an OpenAI-compatible "
        "service or a local Ollama in the providers file, and restart.",
        "roles": "Writing a role needs a language model, and none is configured. Set ANTHROPIC_API_KEY for Claude, or "
        "name an OpenAI-compatible service or a local Ollama in the providers file, and restart.",
        "notice": "I can only quote, because no language model is configured. For written answers set "
        "ANTHROPIC_API_KEY for Claude, or name an OpenAI-compatible service or a local Ollama in the providers file, "
        "and restart.",
        "saved": "I will remember: {}",
        "no memory": "I have no memory here, so I cannot save that.",
        "failed": "A tool failed: {}",
        f"failed {ACTION}": "My role could not be activated: {}",
        f"failed {RECALL}": "My memory could not be read: {}",
        f"failed {REMEMBER}": "That could not be saved: {}",
        f"failed {SEARCH}": "The documents could not be searched: {}",
    },
    "zh": {
        "quotes": "文档中写道：",
        "also": "文档中还写道：",
        "summary": "写总结需要语言模型。以下是各文档中最相关部分的开头：",
        "memory": "记忆中有：{}",
        "nothing": "在文档中没有找到能回答这个问题的内容，可以换个说法再问。",
        "unsearched": "这里没有可以查找的文档，记忆中也没有相关内容。",
        "greeting": "您好！请提问，我会引用文档中的相关原文来回答。",
        "thanks": "不客气。",
        "about": "我是本服务器的摘录模式：在文档中查找并引用最相关的原句，没有配置语言模型。"
        "设置 ANTHROPIC_API_KEY 使用 Claude，或在 providers 文件中填写兼容 OpenAI 的服务或本地 Ollama，然后重启。",
        "roles": "编写角色需要语言模型，而现在没有配置。"
        "设置 ANTHROPIC_API_KEY 使用 Claude，或在 providers 文件中填写兼容 OpenAI 的服务或本地 Ollama，然后重启。",
        "notice": "这里只能摘录原文，因为没有配置语言模型。如需生成回答，"
        "请设置 ANTHROPIC_API_KEY 使用 Claude，或在 providers 文件中填写兼容 OpenAI 的服务或本地 Ollama，然后重启。",
        "saved": "记住了：{}",
        "no memory": "这里没有记忆功能，无法保存。",
        "failed": "工具出错：{}",
        f"failed {ACTION}": "角色未能激活：{}",
        f"failed {RECALL}": "未能读取记忆：{}",
        f"failed {REMEMBER}": "未能保存：{}",
        f"failed {SEARCH}": "未能查找文档：{}",
    },
}
