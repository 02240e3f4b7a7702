"""The extractive model: the default when no API key is configured. It quotes what was retrieved, it does not write.

A plain `Model`: it sees prompt, messages and tool schemas only, calls the tools it is offered (activate, recall,
search; or remember) and answers with sentences of the hits, each with its citation, in the user's language. The
retriever's work is taken as it is: its sentences are what is quoted, its order breaks ties. What is decided here is
which of the sentences answer the question: by the words they share, and by the form of answer it expects. All
but the class is pure; the same request always gives the same answer.
"""

import hashlib
import itertools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import anyio.lowlevel

from agentic_rag.events import Usage
from agentic_rag.json_form import Json
from agentic_rag.messages import (
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
from agentic_rag.models.words import (
    ASKS,
    OPENER,
    POINTER,
    SHOWS,
    SMALL_TALK,
    Kind,
    Language,
    SmallTalk,
    content_words,
    counted_things,
    is_cjk,
    language_of,
    numbered_things,
    terms,
)
from agentic_rag.tools import system

NAME = "extractive"
ACTION, RECALL = system.ACTION.name, system.RECALL.name
REMEMBER, SEARCH = system.REMEMBER.name, system.SEARCH.name
DELEGATE = system.DELEGATE.name

Intent = Literal["question"] | SmallTalk

MAX_QUERY = 1_000
"""Characters of a search query; more words only blur it."""
MAX_REASON = 200
"""Characters that are passed on of a tool's error."""
MAX_KEYWORDS, MAX_FOLLOWED = 8, 3
"""Keywords of a memory; earlier questions that a chain of follow-ups may draw on."""
MAX_PASSAGES = 20
"""Hits that are read, best first: comparing costs about 0.1 ms a sentence on the event loop."""
MAX_QUOTES, MAX_ITEMS, MAX_LED = 3, 8, 2
"""Sentences that are chosen; items of a list, or sentences after one that only names the subject, quoted with it."""
CLOSE, CLOSE_ELSEWHERE, MEMORY_FLOOR = 0.62, 0.8, 0.4
"""Share of the best score that a further quote needs, from the same document and from another one; score of a memory,
which was not searched for by meaning."""
SCATTER = 4
"""Terms for each shared one, over which a sentence says something else with the same words."""


class ExtractiveModel:
    """A `models.base.Model` without a model: it never fails and needs no network."""

    name = NAME

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Open one call; see `models.base.Model.stream`."""
        async with aclosing(_events(request)) as events:
            yield events

    async def aclose(self) -> None:
        """Nothing is held open."""


async def _events(request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
    blocks = decide(request)
    yield MessageStarted(NAME)
    for index, block in enumerate(blocks):
        if block["type"] == "tool_use":
            yield BlockStarted(index, {**block, "input": {}})
        else:
            yield BlockStarted(index, {"type": "text", "text": ""})
            for piece in pieces(block["text"]):
                # Others get their turn between deltas, as they do while a real model's bytes are awaited.
                await anyio.lowlevel.checkpoint()
                yield TextDelta(index, piece)
            for raw in block.get("citations", ()):
                place = raw["search_result_index"], raw["start_block_index"], raw["end_block_index"]
                yield CitationDelta(index, Citation(*place, raw["cited_text"], raw))
        yield BlockStopped(index, block)
    calls = any(block["type"] == "tool_use" for block in blocks)
    size = _tokens_of([request.system, request.tools, request.messages])
    yield MessageCompleted("tool_use" if calls else "end_turn", Usage(input=size, output=_tokens_of(blocks)))


def pieces(text: str, words: int = 3) -> list[str]:
    """Cut a text into deltas of a few words; joined they are the text."""
    parts = re.findall(r"\s*\S{1,24}|\s+", text)
    return ["".join(parts[start : start + words]) for start in range(0, len(parts), words)]


def _tokens_of(value: Any) -> int:
    """About the number of tokens: bytes of JSON by three, as the runtime counts."""
    text = json.dumps(without_private(value), ensure_ascii=False)
    return (len(text.encode("utf-8", "replace")) + 2) // 3


def decide(request: ModelRequest) -> list[Block]:
    """Return the blocks of the next assistant message: either only ``tool_use`` blocks, or only text blocks."""
    if asks_for_summary(request):
        return summarize(request)
    state = read(request)
    return _calls(state, request) or _cut(_reply(state), request.max_tokens)


def _calls(state: "State", request: ModelRequest) -> list[Block]:
    choice = request.tool_choice or {}
    if choice.get("type") == "none":
        return []
    offered = {tool["name"]: tool for tool in request.tools}
    plan = [
        (name, arguments)
        for name, values in _plan(state)
        if name in offered and (arguments := _fit(offered[name], values)) is not None
    ]
    if any(name == ACTION for name, _ in plan):
        # The role comes first: it may say how to search. Recall needs only the role's name.
        plan = [(name, arguments) for name, arguments in plan if name in (ACTION, RECALL)]
    if choice.get("disable_parallel_tool_use"):
        plan = plan[:1]
    ids = {use["id"] for message in request.messages for use in tool_uses(message["content"])}
    blocks: list[Block] = []
    for name, arguments in plan:
        blocks.append({"type": "tool_use", "id": _new_id(ids, name, state.question), "name": name, "input": arguments})
        ids.add(blocks[-1]["id"])
    return blocks


def _plan(state: "State") -> Iterator[tuple[str, Json]]:
    """The calls that are still to be made in this turn, each with all arguments it may take."""
    if state.role and state.activate:
        yield ACTION, {"role": state.role}
    if state.to_remember:
        if REMEMBER not in state.called:
            yield REMEMBER, {"role": state.role, "engrams": [_engram(state.to_remember)]}
        return
    words = content_words(state.question)
    if RECALL not in state.called:
        # Cues are compared letter by letter, and ours are saved in lower case.
        cues = dict.fromkeys([*words, *(word.lower() for word in words)])
        yield RECALL, {"role": state.role, "query": " ".join(cues)[:MAX_QUERY]}
    if SEARCH not in state.called and state.intent == "question":
        yield SEARCH, {"query": " ".join([state.question, *content_words(state.before)])[:MAX_QUERY]}


def _engram(content: str) -> Json:
    """A memory with the keywords it will be found by: PromptX refuses fewer than two."""
    keywords = list(dict.fromkeys(word.lower() for word in content_words(content)))[:MAX_KEYWORDS]
    spare = ("备忘", "记忆") if language_of(content) == "zh" else ("note", "memory")
    keywords += [word for word in spare if word not in keywords][: max(0, 2 - len(keywords))]
    return {"content": content, "schema": "\n".join(keywords), "strength": 0.8, "type": "ATOMIC"}


def _fit(tool: ToolSpec, values: Json) -> Json | None:
    """The values that the tool's schema declares and that are not empty; None when a required one is missing."""
    schema = tool["input_schema"]
    declared = schema.get("properties") or {}
    arguments = {}
    for name, value in values.items():
        if value and name in declared:
            limit = declared[name].get("maxLength")
            arguments[name] = value[:limit] if isinstance(value, str) and isinstance(limit, int) else value
    return arguments if set(schema.get("required") or ()) <= set(arguments) else None


def _new_id(ids: Collection[str], name: str, question: str) -> str:
    """An id no call of the request has, made of the request alone."""
    keys = (f"{number}\0{name}\0{question}".encode("utf-8", "replace") for number in itertools.count(len(ids)))
    return next(ident for key in keys if (ident := f"toolu_x{hashlib.sha256(key).hexdigest()[:23]}") not in ids)


def _reply(state: "State") -> list[Block]:
    phrases = _PHRASES[state.language]
    if state.to_remember:
        lines = _complaints(state, phrases)
        failed = any(name == REMEMBER for name, _ in state.problems)
        if REMEMBER in state.called and not failed:
            lines.append(phrases["saved"].format(state.to_remember))
        elif not failed:
            lines.append(phrases["no memory"])
        return [text_block("\n\n".join(lines))]
    if state.intent != "question":
        return [text_block(phrases[state.intent])]
    return _answer(state, phrases)


def _answer(state: "State", phrases: Mapping[str, str]) -> list[Block]:
    """Return the text blocks of an answer: framing, then one block with its citation for each quote."""
    question = understand(state.question, state.before)
    memories, best_memory = _fitting_memories(question, state.memories)
    quotes, best = _quotes(question, state.hits or ())
    if memories and best < best_memory * CLOSE:
        quotes = []
    lines = _complaints(state, phrases)
    lines += [phrases["memory"].format(memory) for memory in memories]
    if quotes:
        lines.append(phrases["also" if memories else "quotes"])
    elif not memories and state.hits is not None:
        lines.append(phrases["nothing"])
    elif not memories and all(name != SEARCH for name, _ in state.problems):
        lines.append(phrases["unsearched"])
    return ([text_block("\n\n".join(lines))] if lines else []) + quotes


def _complaints(state: "State", phrases: Mapping[str, str]) -> list[str]:
    return [phrases.get(f"failed {name}", phrases["failed"]).format(reason) for name, reason in state.problems]


def _cut(blocks: list[Block], max_tokens: int) -> list[Block]:
    """The blocks that fit; the first always stays, because an answer is never empty."""
    sizes = itertools.accumulate(_tokens_of([block]) for block in blocks)
    return blocks[: max(1, sum(size <= max_tokens for size in sizes))]


@dataclass(frozen=True, slots=True)
class Passage:
    """Sentences that follow each other under one title; of a hit also its place among those of the request."""

    title: str
    texts: tuple[str, ...]
    index: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """One request as the model understands it.

    ``before``: the earlier questions that a follow-up hangs on. ``to_remember``: what the user wants saved, "" for
    nothing. ``activate``: the role is due. ``called``: the tools called in this turn; ``hits`` (None: the documents
    were not searched), ``memories`` and ``problems`` (tool and reason) are what they gave.
    """

    question: str
    before: str
    language: Language
    intent: Intent
    to_remember: str
    role: str
    activate: bool
    called: frozenset[str]
    hits: tuple[Passage, ...] | None
    memories: tuple[str, ...]
    problems: tuple[tuple[str, str], ...]


def read(request: ModelRequest) -> State:
    """Return what stands in a request: the newest words of the user, and what the tools gave since."""
    messages = request.messages
    start = next((place for place in reversed(range(len(messages))) if _has_words(messages[place])), len(messages))
    notes, question = _split_notes(messages[start]) if start < len(messages) else ("", "")
    system = "\n".join(block.get("text", "") for block in request.system)
    results = {block["tool_use_id"]: (block, hits) for block, hits in _results(messages)}
    uses = [(place > start, use) for place, message in enumerate(messages) for use in tool_uses(message["content"])]
    hits: tuple[Passage, ...] | None = None
    memories: list[str] = []
    problems: list[tuple[str, str]] = []
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
    activations = [(current, use) for current, use in uses if use["name"] == ACTION]
    arguments = activations[-1][1].get("input") if activations else None
    last_role = str(arguments.get("role") or "") if isinstance(arguments, dict) else ""
    done = any((answer := results.get(use["id"])) and not answer[0].get("is_error") for _, use in activations)
    due = ACTION in notes or (ACTION in system and not done)
    return State(
        question=question,
        before=_before(question, [_split_notes(each)[1] for each in messages[:start] if _has_words(each)]),
        language=language_of(question if any(map(str.isalpha, question)) else system),
        intent=_intent(question),
        to_remember=instruction_to_remember(question),
        role=match[1] if (match := _ROLE.search(f"{notes}\n{system}")) else last_role,
        activate=due and not any(current for current, _ in activations),
        called=frozenset(use["name"] for current, use in uses if current),
        hits=hits,
        memories=tuple(dict.fromkeys(memories)),
        problems=tuple(problems),
    )


def _has_words(message: Message) -> bool:
    return message["role"] == "user" and bool(plain_text(message["content"]).strip())


def _split_notes(message: Message) -> tuple[str, str]:
    """The notes before the user's words, and the words: the last text block, without a note at its head."""
    *notes, words = [block["text"] for block in message["content"] if block["type"] == "text" and block["text"].strip()]
    if head := _NOTE.match(words):
        notes.append(head[1])
        words = words[head.end() :]
    return "\n".join(notes), words.strip()


def _results(messages: Sequence[Message]) -> Iterator[tuple[Block, tuple[Passage, ...]]]:
    """All tool results in order, each with its hits, which are counted over the whole request.

    A hit that a result only names, since it was shown before, is that earlier one.
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

    PromptX writes ``- [ATOMIC 0.8 2026-11-22 id] content (cue · cue)``, where the content may have several lines;
    from any other list the items are taken. The keyword map above them is no memory.
    """
    if _MEMORY.search(text):
        items = _MEMORY.split(text)[1:]
        items[-1:] = items[-1].split("\n\n")[:1]
        contents = [_CUES.sub("", item.rstrip()) for item in items]
    else:
        contents = [part.split("\n")[0] for part in _BULLET.split(text)[1:]]
    return [" ".join(content.split()) for content in contents if content.strip()]


def _intent(question: str) -> Intent:
    return next((intent for intent, pattern in SMALL_TALK.items() if pattern.fullmatch(question)), "question")


def instruction_to_remember(text: str) -> str:
    """Return what a message tells to remember, "" when it tells nothing of the kind ("do you remember …?")."""
    match = _REMEMBER.fullmatch(text.strip())
    content = (match["en"] or match["zh"]).strip() if match else ""
    return "" if _NOT_TO_REMEMBER.match(content) and content.endswith(("?", "？")) else content


def _before(question: str, earlier: Sequence[str]) -> str:
    """The earlier questions that a follow-up hangs on, oldest first."""
    questions: list[str] = []
    for previous in reversed(earlier):
        if len(questions) == MAX_FOLLOWED or not _follows_up(question):
            break
        if _intent(previous) == "question" and not instruction_to_remember(previous):
            questions.insert(0, previous)
            question = previous
    return " ".join(questions)


def _follows_up(question: str) -> bool:
    """Whether a question cannot stand alone: it opens with "and", points at something, or has next to no words."""
    # A run of Chinese characters is not cut into words by spaces: two characters are about one.
    size = sum(len(word) // 2 if is_cjk(word[0]) else 1 for word in content_words(question))
    if size <= 1 and not understand(question).kinds:
        return True
    return not size or (size <= 4 and bool(OPENER.match(question) or POINTER.search(question)))


@dataclass(frozen=True, slots=True)
class Question:
    """A question as it is compared.

    ``kinds`` are the kinds of answer it expects, ``asking`` the terms that only say so ("price", "电话"), ``counted``
    what it asks the number of ("how many days"), ``things`` the numbered things it names: ``{"brisa": {"300"}}``.
    """

    terms: Mapping[str, float]
    kinds: frozenset[Kind]
    asking: frozenset[str]
    counted: frozenset[str]
    things: Mapping[str, frozenset[str]]


class Rating(NamedTuple):
    """``score`` orders sentences, 0 to about 2; ``shows``: it, or what it leads to, has the form of an answer."""

    score: float
    relevant: bool
    shows: bool


def understand(text: str, before: str = "") -> Question:
    """Return the question in ``text``; the terms of ``before`` (an earlier one it follows up) count half."""
    weights = {term: weight / 2 for term, weight in terms(before, question=True).items()}
    weights.update(terms(text, question=True))
    low = unicodedata.normalize("NFKC", text).lower()
    asks = [(kind, match.group()) for kind, pattern in ASKS.items() for match in pattern.finditer(low)]
    if any(kind in ("contact", "frequency") for kind, _ in asks):
        # "What is the phone number" and "how often" ask for digits of one form, not for any number.
        asks = [(kind, words) for kind, words in asks if kind != "number"]
    asking = frozenset(term for _, words in asks for term in terms(words, question=True))
    kinds = frozenset(kind for kind, _ in asks)
    return Question(weights, kinds, asking, counted_things(low), numbered_things(f"{before} {text}"))


def rate(question: Question, passages: Sequence[Passage]) -> list[list[Rating]]:
    """Return the rating of each sentence of each passage; passages come best first.

    A rare term counts more than one that stands in many sentences. A term in the title, in the sentence before or in
    the header of the table counts in part, as does one that names the kind of answer when the sentence shows one.
    """
    own = [[terms(sentence) for sentence in passage.texts] for passage in passages]
    frequency = Counter(term for passage in own for each in passage for term in question.terms if term in each)
    count = sum(map(len, own))
    weights = {
        term: weight * math.log(1 + (count + 1) / (frequency[term] + 0.5)) * (2 if _CODE.fullmatch(term) else 1)
        for term, weight in question.terms.items()
    }
    near_top = (1 + 0.15 / (1 + rank) for rank in itertools.count())
    return [_rate(question, weights, *each) for each in zip(passages, own, near_top, strict=False)]


def _rate(
    question: Question, weights: Mapping[str, float], passage: Passage, own: Sequence[Collection[str]], near_top: float
) -> list[Rating]:
    """Rate the sentences of one passage; ``weights``: each term's weight by rarity, ``own``: each sentence's terms."""
    title, named = terms(passage.title), numbered_things(passage.title)
    forms = [_shows_answer(question, sentence) for sentence in passage.texts]
    total = sum(weights.values()) or 1.0
    ratings: list[Rating] = []
    for index, sentence in enumerate(passage.texts):
        header = _table_header(passage.texts, index)
        before = own[header] if header != index else own[index - 1] if index else ()
        asking = question.asking if forms[index] else ()
        covered = known = 0.0
        alone = True
        for term, weight in weights.items():
            share = 1.0 if term in own[index] else 0.6 if term in asking or term in title else 0.3 * (term in before)
            covered += weight * share
            alone = alone and share < 1
            if share > 0.5:
                known += 2 if _CODE.fullmatch(term) else question.terms[term]
        shows = forms[index]
        if not shows and _only_names(question, own[index]):
            shows = any(forms[index + 1 : index + 1 + MAX_LED])
        score = covered / total
        # Without a word of its own it must have much of the question around it.
        relevant = (score >= 0.3 or (score >= 0.18 and known >= 2)) and (score > 0.4 or not alone)
        if question.kinds:
            score *= 0.75 if not shows else 1.3 if _counts(question, own[index]) else 1.0
        if _is_scattered(question, own[index]):
            score *= 0.8
        if title and all(term in title or term.isdigit() or term in _FOOT for term in own[index]):
            score *= 0.2  # it only repeats its title: a running head, a page foot
        here = numbered_things(sentence) if question.things else {}
        for word, numbers in question.things.items():
            others = here.get(word) or named.get(word)
            score *= 0.5 if others and not others & numbers else 1.0  # "Model 900", and "Model 300" was asked for
        ratings.append(Rating(score * near_top, relevant, shows))
    return ratings


def _only_names(question: Question, own: Collection[str]) -> bool:
    """Whether a sentence only names what was asked ("New: quiet hours."), so that the answer follows it."""
    return 0 < len(own) <= 12 and sum(term not in question.terms for term in own) <= len(own) / 3


def _shows_answer(question: Question, sentence: str) -> bool:
    """Whether a sentence has the form of an answer: a number for "how many", a date for "when"."""
    low = sentence.lower()
    return any(SHOWS[kind].search(low) for kind in question.kinds)


def _counts(question: Question, own: Collection[str]) -> bool:
    """Whether a sentence counts what was asked the number of ("27 days"); true when nothing was."""
    return not question.counted or any(
        number[0].isdigit() and counted in question.counted for number, counted in itertools.pairwise(own)
    )


def _is_scattered(question: Question, own: Collection[str]) -> bool:
    """Whether the words that a sentence shares with the question stand far apart in it, as by chance."""
    places = [place for place, term in enumerate(own) if term in question.terms]
    return len(places) > 1 and places[-1] - places[0] >= SCATTER * len(places)


def _table_header(sentences: Sequence[str], index: int) -> int:
    """Return the index of the header of the table that the sentence is a row of; its own when it is no row."""
    header = index
    while CELLS in sentences[index] and header > 0 and CELLS in sentences[header - 1]:
        header -= 1
    return header


def _fitting_memories(question: Question, memories: Sequence[str]) -> tuple[list[str], float]:
    """The memories worth quoting, best first, and the best score."""
    rated = list(zip(*rate(question, [Passage("", tuple(memories))]), memories, strict=True))
    rated = [pair for pair in rated if pair[0].relevant and pair[0].score >= MEMORY_FLOOR]
    rated.sort(key=lambda pair: -pair[0].score)
    best = rated[0][0].score if rated else 0.0
    return [memory for rating, memory in rated if rating.score >= CLOSE * best][:MAX_QUOTES], best


def _quotes(question: Question, hits: Sequence[Passage]) -> tuple[list[Block], float]:
    """The quotes, those of the best hit first and in reading order within one, and the best score."""
    hits = hits[:MAX_PASSAGES]
    chosen, best = _choose(hits, rate(question, hits))
    blocks: list[Block] = []
    for place in dict.fromkeys(place for place, _ in chosen):
        texts = hits[place].texts
        indexes = sorted({each for owner, index in chosen if owner == place for each in _span(question, texts, index)})
        for _, run in itertools.groupby(enumerate(indexes), lambda pair: pair[1] - pair[0]):
            span = [index for _, index in run]
            blocks.append(_quote(hits[place], span[0], span[-1] + 1))
    return blocks, best


def _choose(hits: Sequence[Passage], ratings: Sequence[Sequence[Rating]]) -> tuple[list[tuple[int, int]], float]:
    """Hit and sentence of what is quoted, best first. Beside an answer stands nothing that cannot be one."""
    candidates = sorted(
        (-rating.score, place, index)
        for place, row in enumerate(ratings)
        for index, rating in enumerate(row)
        if rating.relevant and hits[place].texts[index].strip() not in _EMPTY
    )
    best = -candidates[0][0] if candidates else 0.0
    chosen: dict[str, tuple[int, int]] = {}
    answered = False
    for score, place, index in candidates:
        if -score < best * CLOSE or len(chosen) == MAX_QUOTES:
            break
        if -score < best * CLOSE_ELSEWHERE and hits[place].source != hits[candidates[0][1]].source:
            continue
        text, shows = hits[place].texts[index].strip(), ratings[place][index].shows
        if text not in chosen and (shows or not answered):
            answered = answered or shows
            chosen[text] = place, index
    return list(chosen.values()), best


def _span(question: Question, texts: Sequence[str], index: int) -> list[int]:
    """The sentence and what it cannot be read without: a table's header, the list or the sentences it introduces."""
    header = _table_header(texts, index)
    if header != index:
        return [header, index]
    end = index + 1
    if texts[index].rstrip().endswith((":", "：")) or ("steps" in question.kinds and _ITEM.match(texts[index])):
        while end < len(texts) and end - index <= MAX_ITEMS and _ITEM.match(texts[end]):
            end += 1
    if end == index + 1 and _only_names(question, terms(texts[index])) and not _shows_answer(question, texts[index]):
        end = min(len(texts), end + MAX_LED)
    while end > index + 1 and texts[end - 1].strip() in _EMPTY:
        end -= 1
    return list(range(index, end))


def _quote(hit: Passage, start: int, end: int) -> Block:
    """A text block that shows sentences ``start`` to ``end`` (exclusive), with the citation the API would send."""
    text, line = "", False
    for sentence in hit.texts[start:end]:
        shown = " ".join(sentence.split())
        before, line = line, CELLS in sentence or _ITEM.match(sentence) is not None
        if text and (before or line):
            text += "\n> "
        elif text and not (is_cjk(text[-1:]) or is_cjk(shown[:1])):
            text += " "
        text += shown
    citation = {
        "type": "search_result_location",
        "source": hit.source,
        "title": hit.title,
        "search_result_index": hit.index,
        "start_block_index": start,
        "end_block_index": end,
        "cited_text": "".join(hit.texts[start:end]),
    }
    return {"type": "text", "text": f"\n\n> {text}", "citations": [citation]}


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
_CODE = re.compile(r"(?=.*\d)(?=.*[a-z])[a-z0-9-]+")
"""An identifier, such as a part number: no other word is needed to know what is meant."""
_EMPTY = ("", "[removed]")
_FOOT = frozenset(terms("page pages 第页"))
CELLS = " | "
"""Stands between the cells of a table's row."""

_PHRASES: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "quotes": "The documents say:",
        "also": "And the documents say:",
        "memory": "From memory: {}",
        "nothing": "I found nothing in the documents that answers this. Other words may find it.",
        "unsearched": "I have no documents to search here, and nothing in memory answers this.",
        "greeting": "Hello! Ask me something, and I will quote what the documents say about it.",
        "thanks": "You are welcome.",
        "about": (
            "I am the extractive mode of this server: I search the documents and quote the sentences that fit best, "
            "but no language model is configured. Set ANTHROPIC_API_KEY and restart to get answers from Claude."
        ),
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
        "memory": "记忆中有：{}",
        "nothing": "在文档中没有找到能回答这个问题的内容，可以换个说法再问。",
        "unsearched": "这里没有可以查找的文档，记忆中也没有相关内容。",
        "greeting": "您好！请提问，我会引用文档中的相关原文来回答。",
        "thanks": "不客气。",
        "about": (
            "我是本服务器的摘录模式：在文档中查找并引用最相关的原句，没有配置语言模型。"
            "设置 ANTHROPIC_API_KEY 并重启后，将由 Claude 回答。"
        ),
        "saved": "记住了：{}",
        "no memory": "这里没有记忆功能，无法保存。",
        "failed": "工具出错：{}",
        f"failed {ACTION}": "角色未能激活：{}",
        f"failed {RECALL}": "未能读取记忆：{}",
        f"failed {REMEMBER}": "未能保存：{}",
        f"failed {SEARCH}": "未能查找文档：{}",
    },
}
