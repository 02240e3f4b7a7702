"""The extractive model, which quotes passages instead of writing text. The default without a language model.

The class implements `Model` and sees only the prompt, messages and tool schemas. The model calls the offered tools
(activate, recall, search; or remember). The search decides whether the documents answer and ranks the passages. This
module chooses at most three sentences, rows or passages by the words they share with the question, and quotes each with
its citation. Everything except the class is pure, and the same request always gives the same answer.
"""

import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio.lowlevel

from agentic_rag.base import messages as blocks_of
from agentic_rag.base.events import Usage
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import Block, Message, PassageTable, ToolSpec, plain_text, text_block, tool_uses
from agentic_rag.models import base
from agentic_rag.models.extracts import asks_for_summary, begins_later, summarize
from agentic_rag.models.words import CJK_RUN, content_words, language_of, terms
from agentic_rag.tools import system
from mcp_servers.answer_forms import AnswerForm, asked_form, has_form

NAME = "extractive"
ACTION, RECALL, REMEMBER = system.ACTION.name, system.RECALL.name, system.REMEMBER.name
SEARCH, DELEGATE = system.SEARCH.name, system.DELEGATE.name
MAX_QUERY, MAX_REASON, MAX_KEYWORDS, MAX_FOLLOWED, MAX_QUOTES, MAX_ITEMS = 1_000, 200, 8, 3, 3, 8
MAX_QUOTED = 1_500
"""Longest passage that is quoted completely, in characters."""
SURE, ENOUGH, MEMORY_FLOOR = 0.75, 0.3, 0.2
"""Shares of the question's weight: in a sentence that is a complete answer; in a sentence that answers at all (with
less, the search found the passage by meaning, and the passage is quoted as a whole); in a memory that is used."""
NEAR = 0.8
"""Lowest worth of a further quote, relative to the first one."""
RELEVANT = 0.3
"""Lowest relevance of a quoted passage, relative to the most relevant one, for a question with one part. Counts only if
the search compared meanings: by words alone, the relevance of a right passage may be far lower."""
FORMLESS = 0.6
"""Factor of the rating of a sentence that is no answer of the form that is asked for, such as an amount of money."""
FOLLOWING = 3
"""Sentences that are quoted after one that matches a part of the question: the answer mostly follows its subject."""


class ExtractiveModel:
    """A `models.base.Model` without a language model. Never fails and needs no network."""

    name = NAME

    @asynccontextmanager
    async def stream(self, request: base.ModelRequest) -> AsyncIterator[AsyncIterator[base.ModelEvent]]:
        """Open one call; see `models.base.Model.stream`."""
        async with aclosing(_events(request)) as events:
            yield events

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


async def _events(request: base.ModelRequest) -> AsyncGenerator[base.ModelEvent, None]:
    blocks = decide(request)
    yield base.MessageStarted(NAME)
    for index, block in enumerate(blocks):
        is_call = block["type"] == "tool_use"
        yield base.BlockStarted(index, {**block, "input": {}} if is_call else text_block(""))
        for piece in [] if is_call else pieces(block["text"]):
            await anyio.lowlevel.checkpoint()  # other tasks run between deltas, as while a real model streams
            yield base.TextDelta(index, piece)
        for raw in block.get("citations", ()):
            place = raw["search_result_index"], raw["start_block_index"], raw["end_block_index"]
            yield base.CitationDelta(index, base.Citation(*place, raw["cited_text"], raw))
        yield base.BlockStopped(index, block)
    # The model uses no tokens. A count would look like a cost.
    yield base.MessageCompleted("tool_use" if blocks[0]["type"] == "tool_use" else "end_turn", Usage())


def pieces(text: str, words: int = 3) -> list[str]:
    """Cut a text into deltas of a few words. Joined, they give the text again."""
    parts = re.findall(r"\s*\S{1,24}|\s+", text)
    return ["".join(parts[start : start + words]) for start in range(0, len(parts), words)]


def decide(request: base.ModelRequest) -> list[Block]:
    """Return the blocks of the next assistant message: either only ``tool_use`` blocks, or only text blocks."""
    if asks_for_summary(request):
        return summarize(request)
    turn = read(request)
    if calls := _calls(turn, request):
        return calls
    blocks = _reply(turn)
    # Tokens are estimated as in the runtime: bytes of JSON divided by three. An answer is never empty.
    sizes = itertools.accumulate(
        len(json.dumps([each], ensure_ascii=False).encode(errors="replace")) for each in blocks
    )
    return blocks[: max(1, sum(size <= request.max_tokens * 3 for size in sizes))]


# Reading a request


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A search hit: its title, its sentences, its index among all hits of the request, its relevance and its tables."""

    title: str
    texts: tuple[str, ...]
    index: int = 0
    source: str = ""
    score: float = 0.0
    tables: tuple[PassageTable, ...] = ()

    def table_of(self, place: int) -> PassageTable | None:
        """Return the table that a sentence is a row of, if any. A header is no row."""
        return next((table for table in self.tables if table.first <= place < table.last), None)

    def has_form(self, form: AnswerForm | None, place: int | None = None) -> bool:
        """Return whether the passage, or a sentence with the header of its table, has an answer of a form."""
        if place is None:
            return any(self.has_form(form, each) for each in range(len(self.texts)))
        table = self.table_of(place)
        return has_form(f"{' '.join(table.header) if table else ''}\n{self.texts[place]}", form)


@dataclass(slots=True)
class Turn:
    """The user's newest question and the tool results since.

    ``before``: the earlier questions that a follow-up refers to. ``activate``: the role must be activated now.
    ``is_noticed``: an earlier answer told the user that there is no language model. ``called``: the tools called in
    this turn, and ``problems`` the failed ones with the reason. ``hits``: None without a search. ``by_meaning``: a hit
    need not share a word with the question. ``memories``: contents, and contents with their cues.
    """

    question: str
    before: str
    language: str
    role: str
    activate: bool
    is_noticed: bool
    called: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)
    hits: list[FoundPassage] | None = None
    by_meaning: bool = False
    memories: list[tuple[str, str]] = field(default_factory=list)

    @property
    def to_remember(self) -> str:
        """The text that the message asks to remember, or ""."""
        return instruction_to_remember(self.question)

    @property
    def small_talk(self) -> str:
        """The key of the phrase that answers without a search, or ""."""
        talk = (key for key, pattern in _SMALL_TALK.items() if pattern.fullmatch(self.question))
        return "roles" if self.role.lower() == "nuwa" else next(talk, "")


def read(request: base.ModelRequest) -> Turn:
    """Parse a request."""
    messages, prompt = request.messages, plain_text(request.system)
    asked = [
        place
        for place, message in enumerate(messages)
        if message["role"] == "user" and plain_text(message["content"]).strip()
    ]
    notes, question = _split_notes(messages[asked[-1]]) if asked else ("", "")
    results = {result["tool_use_id"]: (result, hits) for result, hits in _results(messages)}
    uses = [
        (place >= asked[-1] if asked else False, use)
        for place, each in enumerate(messages)
        for use in tool_uses(each["content"])
    ]
    actions = [(now, use) for now, use in uses if use["name"] == ACTION]
    is_active = any(use["id"] in results and not results[use["id"]][0].get("is_error") for _, use in actions)
    role = named[1] if (named := _ROLE.search(f"{notes}\n{prompt}")) else ""
    said = [plain_text(message["content"]) for message in messages if message["role"] == "assistant"]
    turn = Turn(
        question=question,
        before=_before(question, [_split_notes(messages[place])[1] for place in asked[:-1]]),
        language=language_of(question if any(map(str.isalpha, question)) else prompt),
        role=role or (str(actions[-1][1]["input"].get("role") or "") if actions else ""),
        activate=(ACTION in notes or (ACTION in prompt and not is_active)) and not any(now for now, _ in actions),
        is_noticed=begins_later(messages)
        or any(words["notice"] in text for text in said for words in _PHRASES.values()),
    )
    for name, ident in ((use["name"], use["id"]) for now, use in uses if now):
        result, hits = results.get(ident, ({"is_error": True, "content": []}, []))
        text = plain_text(result["content"])
        turn.called.add(name)
        if result.get("is_error"):
            turn.problems[name] = next(filter(None, map(str.strip, text.splitlines())), "no result")[:MAX_REASON]
        elif name == RECALL:
            turn.memories += memories_in(text)
        elif name == SEARCH or (name == DELEGATE and hits):
            is_weak = "match is weak" in text
            turn.hits = [*(turn.hits or ()), *(hit for hit in hits if hit.texts and not is_weak)]
            turn.by_meaning |= "and meaning" in text
    return turn


def _split_notes(message: Message) -> tuple[str, str]:
    """Return the notes of a message and the user's words: the last text block without the notes at its beginning."""
    *notes, words = [block["text"] for block in message["content"] if block["type"] == "text" and block["text"].strip()]
    head = _NOTE.match(words)
    return "\n".join([*notes, head[1]] if head else notes), words[head.end() if head else 0 :].strip()


def _results(messages: Sequence[Message]) -> Iterator[tuple[Block, list[FoundPassage]]]:
    """Yield all tool results in order, each with its hits. Hits are numbered over the whole request.

    If a result only names a hit that an earlier result showed, the earlier hit is used.
    """
    by_title: dict[str, list[FoundPassage]] = {}
    count = itertools.count()
    for block in (block for message in messages for block in message["content"]):
        is_result = block["type"] == "tool_result"
        content = block.get("content") if is_result else [block]
        content = content if isinstance(content, list) else [text_block(str(content))]
        hits: list[FoundPassage] = []
        for part in content:
            if part["type"] == "search_result":
                hits.append(_read_passage(part, next(count)))
                by_title.setdefault(part["title"], []).append(hits[-1])
            elif part["type"] == "text" and part["text"].startswith(blocks_of.SHOWN_BEFORE):
                hits += [hit for title in part["text"].split("\n")[1:] for hit in by_title.get(title, ())]
        if is_result:
            yield {**block, "content": content}, hits


def _read_passage(block: Block, index: int) -> FoundPassage:
    """Return a hit. If the tool names no tables, neighbouring sentences with cells are a table with a header."""
    texts = tuple(part["text"] for part in block["content"])
    origin = blocks_of.Passage.of(block)
    runs = itertools.groupby(range(len(texts)), lambda place: CELLS in texts[place])
    rows = [list(run) for has_cells, run in runs if has_cells]
    tables = tuple(PassageTable(run[1], run[-1] + 1, _cells(texts[run[0]])) for run in rows if len(run) > 1)
    score = origin.score if origin else 0.0
    return FoundPassage(block["title"], texts, index, block["source"], score, (origin and origin.tables) or tables)


def _cells(row: str) -> tuple[str, ...]:
    """Return the cells of a row as the retriever writes it: ``Ada |  | 50``. The outer spaces may be missing."""
    return tuple(" ".join(cell.split()) for cell in f" {row.strip()} ".split(CELLS))


def memories_in(text: str) -> list[tuple[str, str]]:
    """Return the memories in the text of a recall: the content, and the content with its cues.

    PromptX writes ``- [ATOMIC 0.8 2026-11-22 id] content (cue · cue)``, where the content may have several lines. In
    other formats, each list item is a memory. The keyword map above the memories is skipped.
    """
    items = _MEMORY.split(text)[1:]
    items[-1:] = [item.split("\n\n")[0] for item in items[-1:]]
    items = items or [part.split("\n")[0] for part in _BULLET.split(text)[1:]]
    return [(" ".join(_CUES.sub("", item.rstrip()).split()), item) for item in items if item.strip()]


def instruction_to_remember(text: str) -> str:
    """Return the text that a message asks to remember, else "" (also for "do you remember …?")."""
    match = _REMEMBER.fullmatch(text.strip())
    content = (match["en"] or match["zh"]).strip() if match else ""
    return "" if _NOT_TO_REMEMBER.match(content) and content.endswith(("?", "？")) else content


def _before(question: str, earlier: Sequence[str]) -> str:
    """Return the earlier questions that a follow-up refers to, oldest first.

    A follow-up has almost no words, or few words and one that refers back.
    """
    questions: list[str] = []
    for previous in reversed(earlier):
        size = sum(len(word) / 2 if CJK_RUN.match(word) else 1 for word in content_words(question))
        if len(questions) == MAX_FOLLOWED or not (size <= 1 or (size <= 5 and _POINTER.search(question))):
            break
        if not instruction_to_remember(previous) and content_words(previous):
            questions.insert(0, previous)
            question = previous
    return " ".join(questions)


# Tool calls


def _calls(turn: Turn, request: base.ModelRequest) -> list[Block]:
    choice = request.tool_choice or {"type": "auto"}
    offered = {tool["name"]: tool for tool in request.tools}
    if choice["type"] == "tool" and choice["name"] in offered:
        plan = [(choice["name"], _demanded_arguments(offered[choice["name"]]["input_schema"], turn.question))]
    else:
        plan = [(name, values) for name, values in _plan(turn) if name in offered and choice["type"] != "none"]
    plan = [(name, fitting) for name, values in plan if (fitting := _fit(offered[name], values)) is not None]
    if any(name == ACTION for name, _ in plan):
        # Activate the role before the search, because the role may change the search. Recall needs only its name.
        plan = [(name, values) for name, values in plan if name in (ACTION, RECALL)]
    ids = {use["id"] for message in request.messages for use in tool_uses(message["content"])}
    blocks: list[Block] = []
    for name, values in plan[:1] if choice.get("disable_parallel_tool_use") else plan:
        blocks.append(
            {"type": "tool_use", "id": _new_id(ids, f"{name}\0{turn.question}"), "name": name, "input": values}
        )
        ids.add(blocks[-1]["id"])
    return blocks


def _plan(turn: Turn) -> Iterator[tuple[str, Json]]:
    """Yield the remaining calls of this turn, each with all possible arguments."""
    if turn.role and turn.activate:
        yield ACTION, {"role": turn.role}
    if turn.to_remember:
        keywords = dict.fromkeys(word.lower() for word in content_words(turn.to_remember)[:MAX_KEYWORDS])
        spare = () if len(keywords) > 1 else _SPARE_KEYWORDS[turn.language]  # PromptX refuses fewer than two
        schema = "\n".join([*keywords, *spare][: max(2, len(keywords))])
        engram = {"content": turn.to_remember, "schema": schema, "strength": 0.8, "type": "ATOMIC"}
        if REMEMBER not in turn.called:
            yield REMEMBER, {"role": turn.role, "engrams": [engram]}
        return
    words = content_words(turn.question)
    if RECALL not in turn.called:
        # PromptX compares cues exactly, and this model saves its cues in lower case.
        cues = dict.fromkeys([*words, *(word.lower() for word in words)])
        yield RECALL, {"role": turn.role, "query": " ".join(cues)[:MAX_QUERY]}
    if SEARCH not in turn.called and not turn.small_talk:
        yield SEARCH, {"query": " ".join([turn.question, *content_words(turn.before)])[:MAX_QUERY]}


def _demanded_arguments(schema: Json, question: str) -> Json:
    """Return the arguments of a call that the request demands: each required text is the question."""
    declared = schema.get("properties") or {}
    wanted = {name: declared.get(name) or {} for name in schema.get("required") or ()}
    texts = {name: question[:MAX_QUERY] for name, each in wanted.items() if each.get("type", "string") == "string"}
    return texts | {name: each["enum"][0] for name, each in wanted.items() if each.get("enum")}


def _fit(tool: ToolSpec, values: Json) -> Json | None:
    """Return the non-empty values that the tool's schema declares, or None if a required one is missing."""
    declared = tool["input_schema"].get("properties") or {}
    arguments = {}
    for name, value in values.items():
        if value and name in declared:
            limit = declared[name].get("maxLength")
            arguments[name] = value[:limit] if isinstance(value, str) and isinstance(limit, int) else value
    return arguments if set(tool["input_schema"].get("required") or ()) <= set(arguments) else None


def _new_id(ids: Collection[str], key: str) -> str:
    """Return a call id that the request does not use yet. The same request always gives the same id."""
    keys = (f"{number}\0{key}".encode(errors="replace") for number in itertools.count(len(ids)))
    return next(ident for each in keys if (ident := f"toolu_x{hashlib.sha256(each).hexdigest()[:23]}") not in ids)


# Answers


def _reply(turn: Turn) -> list[Block]:
    phrases = _PHRASES[turn.language]
    lines = [phrases.get(f"failed {name}", phrases["failed"]).format(reason) for name, reason in turn.problems.items()]
    if turn.to_remember:
        if REMEMBER not in turn.problems:
            lines.append(phrases["saved" if REMEMBER in turn.called else "no memory"].format(turn.to_remember))
        return [text_block("\n\n".join(lines))]
    asks_for_model = turn.small_talk in ("about", "roles")
    notice = [text_block(f"\n\n{phrases['notice']}")] if asks_for_model or not turn.is_noticed else []
    if turn.small_talk:
        return [text_block(phrases[turn.small_talk]), *notice]
    memories, quotes = _fitting_memories(turn), _quotes(turn)
    lines += [phrases["memory"].format(memory) for memory in memories]
    if _SUMMARY.search(turn.question):
        lines.append(phrases["summary" if quotes else "no summary"])
    elif quotes:
        lines.append(phrases["also" if memories else "quotes"])
    elif not memories and SEARCH not in turn.problems:
        lines.append(phrases["unsearched" if turn.hits is None else "nothing"])
    return [*([text_block("\n\n".join(lines))] if lines else []), *quotes, *notice]


class _Choice(NamedTuple):
    """A hit, the place of its best sentence, and the share of the question's words in that sentence.

    ``form`` is the form of answer that is asked for. ``worth`` ranks the hits: the share and the relevance together. If
    only meaning fits, the relevance alone.
    """

    hit: FoundPassage
    sentence: int
    share: float
    worth: float
    form: AnswerForm | None


def _quotes(turn: Turn) -> list[Block]:
    """Return the quotes, each from another passage: the best passage for each part of the question, then further ones.

    A summary quotes the beginning of the first hit of each document.
    """
    hits = turn.hits or []
    if _SUMMARY.search(turn.question):
        firsts = {hit.source: hit for hit in reversed(hits)}
        return [_quote(hit, range(1)) for hit in list(reversed(firsts.values()))[:MAX_QUOTES]]
    parts = question_parts(turn.question)
    ranked = [_rank(turn, part) for part in parts]
    # The relevance of a hit is that for the whole question, so a question of several parts uses all hits.
    if len(parts) == 1:
        ranked = [[choice for choice in ranked[0] if choice.worth >= NEAR * ranked[0][0].worth]]
    chosen: dict[int, _Choice] = {}
    for choice in filter(None, itertools.chain(*itertools.zip_longest(*ranked))):
        chosen.setdefault(choice.hit.index, choice)
    return [_quote(choice.hit, _span(choice)) for choice in list(chosen.values())[:MAX_QUOTES]]


def question_parts(question: str) -> list[str]:
    """Return the parts of a message that asks several questions or compares several things, or the whole message.

    In "Compare the noise of the Brisa 300 and the Brisa 900", both parts ask for the noise.
    """
    is_comparison = _COMPARE.search(question) is not None
    parts = [
        part for part in (_CONJUNCTION if is_comparison else _NEXT_QUESTION).split(question) if content_words(part)
    ]
    if not 1 < len(parts) <= MAX_QUOTES:
        return [question]
    attribute = _ATTRIBUTE.match(parts[0]) if is_comparison else None
    return [parts[0], *(f"{attribute[0] if attribute else ''}{part}" for part in parts[1:])]


def _rank(turn: Turn, question: str) -> list[_Choice]:
    """Return the hits for a part of the question, best first; nothing if none answers.

    The best one has most words of the question in a sentence, and is relevant: the search also compares meanings, and
    knows that a passage lacks a code. If no sentence shares enough words, the order of the search decides. A hit
    without an answer of the form that is asked for is left out.
    """
    form = asked_form(question)
    is_ranked = turn.by_meaning and question == turn.question
    least = RELEVANT * max((hit.score for hit in turn.hits or []), default=0.0) if is_ranked else 0.0
    hits = [hit for hit in turn.hits or [] if hit.score >= least and hit.has_form(form)]
    weights = _by_rarity(question_terms(question, turn.before), hits)
    ratings = [rate(weights, hit, form) for hit in hits]
    by_words = max(map(max, ratings), default=0.0) >= ENOUGH
    if not by_words and not turn.by_meaning:
        return []
    choices: list[_Choice] = []
    for hit, row in zip(hits, ratings, strict=True):
        share, place = max(row), row.index(max(row))
        choices.append(_Choice(hit, place, share, hit.score + by_words * share, form))
    return sorted(choices, key=lambda choice: -choice.worth) if by_words else choices


def _span(choice: _Choice) -> range:
    """Return the sentences to quote: the best one, with the sentences needed to understand it.

    Of a passage that only its meaning found, the sentences that may be an answer are quoted, and those between.
    """
    texts, place = choice.hit.texts, choice.sentence
    end = place + 1
    if choice.share < ENOUGH:
        able = [at for at in range(len(texts)) if choice.form and choice.hit.has_form(choice.form, at)] or [
            0,
            len(texts) - 1,
        ]
        sizes = itertools.accumulate(map(len, texts[able[0] : able[-1] + 1]))
        return range(able[0], able[0] + max(1, sum(size <= MAX_QUOTED for size in sizes)))
    if texts[place].rstrip().endswith((":", "：")):
        while end < len(texts) and end - place <= MAX_ITEMS and _ITEM.match(texts[end]):
            end += 1
    elif choice.share < SURE and not choice.hit.table_of(place):
        return range(place, min(end + FOLLOWING, len(texts)))
    return range(place, end)


def _quote(hit: FoundPassage, span: range) -> Block:
    """Return a block quote with its citation in the form of the Messages API. Rows are a table with their header."""
    paragraphs: list[str] = []
    shown: PassageTable | None = None
    for place in span:
        table, text = hit.table_of(place), " ".join(hit.texts[place].split())
        if table and table is not shown:
            paragraphs.append("\n> ".join(map(_row, (table.header, ["---"] * len(table.header)))))
        if table:
            paragraphs[-1] += f"\n> {_row(_cells(hit.texts[place]))}"
        elif len(span) > 1 and (below := hit.table_of(place + 1)) and below.header == _cells(text):
            continue  # the table that follows shows its header
        elif paragraphs and not shown:
            paragraphs[-1] += ("\n> " if _ITEM.match(text) else " ") + text
        else:
            paragraphs.append(text)
        shown = table
    citation = {
        "type": "search_result_location",
        "source": hit.source,
        "title": hit.title,
        "search_result_index": hit.index,
        "start_block_index": span.start,
        "end_block_index": span.stop,
        "cited_text": "".join(hit.texts[span.start : span.stop]),
    }
    return {"type": "text", "text": "\n\n> " + "\n>\n> ".join(paragraphs), "citations": [citation]}


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _fitting_memories(turn: Turn) -> list[str]:
    whole = FoundPassage("", tuple(with_cues for _, with_cues in turn.memories))
    ratings = rate(_by_rarity(question_terms(turn.question, turn.before), [whole]), whole)
    rated = sorted(zip(ratings, turn.memories, strict=True), key=lambda pair: -pair[0])
    floor = max(MEMORY_FLOOR, NEAR * max(ratings, default=0.0))
    return list(dict.fromkeys(content for rating, (content, _) in rated if rating >= floor))[:MAX_QUOTES]


def rate(wanted: Mapping[str, float], passage: FoundPassage, form: AnswerForm | None = None) -> list[float]:
    """Return, for each sentence, the matched share of the question's weight, 0..1.

    Terms in the title or in a table's header count in part, and so does a sentence without an answer of the form that
    is asked for. A sentence with one has the words that name the form ("cost"). A repeated title is no answer.
    """
    total = sum(wanted.values()) or 1.0
    title = terms(passage.title)
    named = {term for term in wanted if form and form.words.fullmatch(term)}
    ratings = []
    for place, own in enumerate(map(terms, passage.texts)):
        table = passage.table_of(place)
        around = title | terms(" ".join(table.header)) if table else title
        is_able = passage.has_form(form, place)
        own = own | named if is_able else own - named
        held = sum(weight * (1.0 if term in own else 0.6 if term in around else 0.0) for term, weight in wanted.items())
        worth = 0.2 if title and own <= title else 1.0 if is_able else FORMLESS
        ratings.append(held / total * worth)
    return ratings


def _by_rarity(wanted: Mapping[str, float], hits: Sequence[FoundPassage]) -> dict[str, float]:
    """Weigh each term by its rarity among the sentences.

    Pairs of ideographs that occur in no sentence are dropped, unless no term occurs at all. Most pairs are not words,
    and pairs that span two words of a question would make an answered question look unanswered.
    """
    own = [terms(sentence) | terms(hit.title) for hit in hits for sentence in hit.texts]
    frequency = Counter(term for each in own for term in each if term in wanted)
    return {
        term: weight * math.log(1 + (len(own) + 1) / (frequency[term] + 0.5)) * (1 + any(map(str.isdigit, term)))
        for term, weight in wanted.items()
        if not frequency or frequency[term] or not CJK_RUN.match(term)
    }


def question_terms(text: str, before: str = "") -> dict[str, float]:
    """Return the terms of a question with their weights. Terms of the earlier questions count half."""
    return dict.fromkeys(terms(before), 0.5) | dict.fromkeys(terms(text), 1.0)


CELLS = " | "
"""Separator between the cells of a table row."""
_SPARE_KEYWORDS = {"zh": ("备忘", "记忆"), "en": ("note", "memory")}
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
_POINTER = re.compile(
    r"^(?:and|but|so|or|also|then|what about|how about|und|aber)\b|^(?:那么?|还有|以及)|呢[？?。\s]*$"
    r"|\b(?:its|it(?! (?:possible|allowed|permitted))|that|this|they|them|those|these|one|(?<!is )(?<!are )there)\b"
    r"|\b(?:sie|(?<!gibt )es|dort|(?-i:das(?! (?:\w+ )?[A-ZÄÖÜ])))\b|它|这个|那个|这样",
    re.I,
)
_SUMMARY = re.compile(r"\bsummar(?:y|i[sz]e)|\boverview\b|zusammenfass|fass\w* .*zusammen|总结|概括|摘要", re.I)
_NEXT_QUESTION = re.compile(
    r"(?<=[?？;；])|,?\s(?:and|und)\s+(?=(?:(?:in|on|at|by|from|to|for|of|with|auf|an|bei|bis|ab|mit|von|zu|für)\s+)?"
    r"(?:who|whom|whose|what|which|when|where|why|how|wer|wen|wem|was|wann|wo|wohin|warum|wie|welche[rsmn]?)\b)",
    re.I,
)
_COMPARE = re.compile(r"\bcompar|\bdifferen|\bversus\b|\bvs\b|vergleich|unterschied|比较|区别|不同|分别", re.I)
_ATTRIBUTE = re.compile(r".+?\s(?:of|between|von|zwischen)\s+(?:(?:the|der|dem|den)\s+)?", re.I)
_CONJUNCTION = re.compile(r"\b(?:and|or|with|than|versus|vs|und|oder|mit|als)\b|[和与跟、]", re.I)
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

_PHRASES: Mapping[str, Mapping[str, str]] = {
    "en": {
        "quotes": "The documents say:",
        "also": "And the documents say:",
        "summary": "A summary needs a language model. The documents begin like this where they fit best:",
        "memory": "From memory: {}",
        "nothing": "I found nothing in the documents that answers this. Other words may find it.",
        "unsearched": "I have no documents to search here, and nothing in memory answers this.",
        "greeting": "Hello! Ask me something, and I will quote what the documents say about it.",
        "thanks": "You are welcome.",
        "about": "I am the extractive mode of this server: I search the documents and quote the best passages.",
        "roles": "Writing a role needs a language model.",
        "no summary": "A summary needs a language model.",
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
        "about": "我是本服务器的摘录模式：在文档中查找并引用最相关的原句。",
        "roles": "编写角色需要语言模型。",
        "no summary": "写总结需要语言模型。",
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
