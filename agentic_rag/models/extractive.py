"""The extractive model: the default without a language model. It quotes passages instead of writing text.

Like any `Model` it sees only the prompt, the messages and the tool schemas. Each call (`decide`) has three steps:

1. `read` parses the request: the newest question and the results of the tools called since.
2. `_calls` returns the next tool calls: activate the role, recall, search (or remember, or read the beginnings of the
   documents to summarise).
3. `_reply` writes the answer: memories, quotes with citations, and the parts of the question without an answer.

The search decides whether the documents answer, how relevant a passage is, and which parts no passage matches. This
module decides which sentences to quote, by the words that they share with the question. It declines nothing that the
search trusts. Everything except the class is pure, and the same request always gives the same answer.
"""

import hashlib
import itertools
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio.lowlevel

from agentic_rag.base import messages as blocks_of
from agentic_rag.base.events import Usage
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import Block, Message, PassageTable, plain_text, text_block, tool_uses
from agentic_rag.models import base
from agentic_rag.models.extracts import asks_for_summary, begins_later, summarize
from agentic_rag.models.words import CJK_RUN, content_words, language_of, terms
from agentic_rag.tools import system
from mcp_servers.answer_forms import AnswerForm, asked_form, has_form

NAME = "extractive"
ACTION, RECALL, REMEMBER = system.ACTION.name, system.RECALL.name, system.REMEMBER.name
SEARCH, READ, DELEGATE = system.SEARCH.name, system.READ_DOCUMENT.name, system.DELEGATE.name
MAX_QUERY, MAX_REASON, MAX_KEYWORDS, MAX_FOLLOWED, MAX_QUOTES, MAX_ITEMS = 1_000, 200, 8, 3, 3, 8
MAX_QUOTED = 1_000
"""Longest quote without a complete answer, in characters."""
LEAST, ENOUGH, SURE = 0.15, 0.3, 0.75
"""Shares of the question's words in a sentence: of a passage that is quoted at all, if the search compared only words;
of one that not only its meaning fits, and of a memory that is used; of a complete answer."""
NEAR = 0.85
"""Lowest evidence for a further quote, and lowest share for a further memory, relative to the first one."""
WITHOUT_CODE = 0.05
"""Highest relevance that the search gives to a passage without the code or the name that the question asks for. Such a
passage is quoted only for a complete answer: a long table has less relevance than its row."""
TITLE, FORMLESS = 0.6, 0.6
"""Factors: for a word of the question in the title or table header instead of the sentence, and for a sentence that is
no answer of the form that is asked for, such as an amount of money."""
FOLLOWING = 2
"""Sentences that are quoted after an incomplete answer: the answer mostly follows its subject."""


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


def pieces(text: str) -> list[str]:
    """Cut a text into deltas of a few words. Joined, they give the text again."""
    return re.findall(r"(?:\s*\S{1,24}){1,3}|\s+", text)


def decide(request: base.ModelRequest) -> list[Block]:
    """Return the blocks of the next assistant message: either only ``tool_use`` blocks, or only text blocks."""
    if asks_for_summary(request):
        return summarize(request)
    turn = read(request)
    if calls := _calls(turn, request):
        return calls
    blocks = _reply(turn)
    # Tokens are estimated as in the runtime: bytes of JSON divided by three. An answer is never empty.
    sizes = (len(json.dumps([block], ensure_ascii=False).encode(errors="replace")) for block in blocks)
    return blocks[: max(1, sum(size <= request.max_tokens * 3 for size in itertools.accumulate(sizes)))]


# Reading a request


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage: its title, its sentences, its index among all passages of the request, its relevance, its tables."""

    title: str
    sentences: tuple[str, ...]
    index: int = 0
    source: str = ""
    score: float = 1.0
    tables: tuple[PassageTable, ...] = ()

    @property
    def title_terms(self) -> frozenset[str]:
        """The terms of the headings, of the document's name and of the words in that name."""
        title = _PARENTHESIS.sub("", self.title)  # without the number of the passage and the date
        return terms(f"{title} {re.sub('[-_.]', ' ', title)}")

    def table_of(self, place: int) -> PassageTable | None:
        """Return the table that a sentence is a row of, if any. A header is no row."""
        return next((table for table in self.tables if table.first <= place < table.last), None)

    def is_header(self, place: int) -> bool:
        """Return whether a sentence is the header of the table that follows it."""
        below = None if self.table_of(place) else self.table_of(place + 1)
        return below is not None and below.header == _cells(self.sentences[place])

    def has_form(self, form: AnswerForm | None, place: int) -> bool:
        """Return whether a sentence, with the header of its table, has an answer of a form."""
        table = self.table_of(place)
        return has_form(f"{' '.join(table.header) if table else ''}\n{self.sentences[place]}", form)


@dataclass(slots=True)
class QuestionState:
    """The user's newest message and the tool results since.

    ``before``: the earlier questions that a follow-up refers to. ``activate``: the role must be activated now.
    ``is_noticed``: an earlier answer told the user that there is no language model. ``called``: the tools called in
    this turn, and ``problems`` the failed ones with the reason. ``hits``: the passages that the search found, or None
    without a search. ``by_meaning``: the search compared meanings too. ``unmatched``: the parts of the question that no
    passage matches. ``beginnings``: the first passage of each document that was read. ``memories``: contents, and
    contents with their cues.
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
    unmatched: list[str] = field(default_factory=list)
    beginnings: list[FoundPassage] = field(default_factory=list)
    memories: list[tuple[str, str]] = field(default_factory=list)

    @property
    def wants_summary(self) -> bool:
        """Whether the message asks for a summary, which only a language model can write."""
        return _SUMMARY.search(self.question) is not None

    @property
    def to_remember(self) -> str:
        """The text that the message asks to remember, or ""."""
        return instruction_to_remember(self.question)

    @property
    def small_talk(self) -> str:
        """The key of the phrase that answers without a search, or ""."""
        talk = (key for key, pattern in _SMALL_TALK.items() if pattern.fullmatch(self.question))
        return "roles" if self.role.lower() == "nuwa" else next(talk, "")


def read(request: base.ModelRequest) -> QuestionState:
    """Parse a request."""
    messages, prompt = request.messages, plain_text(request.system)
    questions_at = [
        place
        for place, message in enumerate(messages)
        if message["role"] == "user" and plain_text(message["content"]).strip()
    ]
    notes, question = _split_notes(messages[questions_at[-1]]) if questions_at else ("", "")
    results = {result["tool_use_id"]: (result, hits) for result, hits in _results(messages)}
    uses = [
        (bool(questions_at) and place >= questions_at[-1], use)
        for place, message in enumerate(messages)
        for use in tool_uses(message["content"])
    ]
    actions = [(is_new, use) for is_new, use in uses if use["name"] == ACTION]
    is_active = any(use["id"] in results and not results[use["id"]][0].get("is_error") for _, use in actions)
    named = _ROLE.search(f"{notes}\n{prompt}")
    answers = [plain_text(message["content"]) for message in messages if message["role"] == "assistant"]
    turn = QuestionState(
        question=question,
        before=_before(question, [_split_notes(messages[place])[1] for place in questions_at[:-1]]),
        language=language_of(question if any(map(str.isalpha, question)) else prompt),
        role=named[1] if named else str(actions[-1][1]["input"].get("role") or "") if actions else "",
        activate=(ACTION in notes or (ACTION in prompt and not is_active)) and not any(is_new for is_new, _ in actions),
        is_noticed=begins_later(messages) or any(notice in answer for answer in answers for notice in _TEXTS["notice"]),
    )
    for name, call_id in ((use["name"], use["id"]) for is_new, use in uses if is_new):
        result, hits = results.get(call_id, ({"is_error": True, "content": []}, []))
        text = plain_text(result["content"])
        turn.called.add(name)
        if result.get("is_error"):
            turn.problems[name] = next(filter(None, map(str.strip, text.splitlines())), "no result")[:MAX_REASON]
        if name == RECALL and not result.get("is_error"):
            turn.memories += memories_in(text)
        elif name == READ:
            turn.beginnings += hits[:1]
        elif name == SEARCH or (name == DELEGATE and hits):
            # The search writes this note into its result when no passage is about the question.
            is_weak = "match is weak" in text and not turn.wants_summary
            # Of a removed passage, only a mark is left, which is also its title.
            readable = [hit for hit in hits if {*hit.sentences} - {hit.title} and not is_weak]
            turn.hits = [*(turn.hits or ()), *readable]
            turn.unmatched += _UNMATCHED.findall(text)
            turn.by_meaning |= "and meaning" in text
    return turn


def _split_notes(message: Message) -> tuple[str, str]:
    """Return the notes of a message and the user's words: the last text block without the notes at its beginning."""
    *notes, words = [block["text"] for block in message["content"] if block["type"] == "text" and block["text"].strip()]
    head = _NOTE.match(words)
    return "\n".join([*notes, head[1]] if head else notes), words[head.end() if head else 0 :].strip()


def _results(messages: Sequence[Message]) -> Iterator[tuple[Block, list[FoundPassage]]]:
    """Yield all tool results in order, each with its passages, which are numbered over the whole request.

    If a result only names a passage that an earlier result showed, the earlier one is used.
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
                origin, sentences = blocks_of.Passage.of(part), tuple(line["text"] for line in part["content"])
                score, tables = (origin.score, origin.tables or ()) if origin else (1.0, ())
                hits.append(FoundPassage(part["title"], sentences, next(count), part["source"], score, tables))
                by_title.setdefault(part["title"], []).append(hits[-1])
            elif part["type"] == "text" and part["text"].startswith(blocks_of.SHOWN_BEFORE):
                shown = (hit for title in part["text"].split("\n")[1:] for hit in by_title.get(title, ()))
                hits += shown
        if is_result:
            yield {**block, "content": content}, hits


def memories_in(text: str) -> list[tuple[str, str]]:
    """Return the memories in the text of a recall: the content, and the content with its cues.

    PromptX writes ``- [ATOMIC 0.8 2026-11-22 id] content (cue · cue)``, where the content may have several lines. The
    keyword map above the memories is skipped.
    """
    items = _MEMORY.split(text)[1:]
    # Behind the last memory, after an empty line, the server's own remarks follow.
    items[-1:] = [item.split("\n\n")[0] for item in items[-1:]]
    return [(" ".join(_PARENTHESIS.sub("", item.rstrip()).split()), item) for item in items if item.strip()]


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


def _calls(turn: QuestionState, request: base.ModelRequest) -> list[Block]:
    choice = request.tool_choice or {"type": "auto"}
    schemas = {tool["name"]: tool["input_schema"] for tool in request.tools if choice["type"] != "none"}
    plan = list(_plan(turn))
    if choice["type"] == "tool" and choice["name"] in schemas:
        plan = [(choice["name"], _demanded_arguments(schemas[choice["name"]], turn.question))]
    plan = [(name, fitting) for name, values in plan if (fitting := _fit(schemas.get(name), values)) is not None]
    if any(name == ACTION for name, _ in plan):
        # Activate the role before the search, because the role may change the search. Recall needs only its name.
        plan = [(name, values) for name, values in plan if name in (ACTION, RECALL)]
    ids = {use["id"] for message in request.messages for use in tool_uses(message["content"])}
    blocks: list[Block] = []
    for name, values in plan[:1] if choice.get("disable_parallel_tool_use") else plan:
        # The same request always gives the same ids, and no id occurs twice in a conversation.
        keys = (f"{number}\0{name}\0{turn.question}".encode(errors="replace") for number in itertools.count(len(ids)))
        call_ids = (f"toolu_x{hashlib.sha256(key).hexdigest()[:23]}" for key in keys)
        call_id = next(call_id for call_id in call_ids if call_id not in ids)
        blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": values})
        ids.add(call_id)
    return blocks


def _plan(turn: QuestionState) -> Iterator[tuple[str, Json]]:
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
    if turn.wants_summary and READ not in turn.called:
        for passage in _documents(turn):
            yield READ, {"document": passage.source}


def _demanded_arguments(schema: Json, question: str) -> Json:
    """Return the arguments of a call that the request demands: each required text is the question."""
    declared = schema.get("properties") or {}
    wanted = {name: declared.get(name) or {} for name in schema.get("required") or ()}
    texts = {name: question[:MAX_QUERY] for name, rule in wanted.items() if rule.get("type", "string") == "string"}
    return texts | {name: rule["enum"][0] for name, rule in wanted.items() if rule.get("enum")}


def _fit(schema: Json | None, values: Json) -> Json | None:
    """Return the non-empty values that a tool's schema declares, or None without the tool or a required value."""
    declared = (schema or {}).get("properties") or {}
    arguments = {}
    for name, value in values.items():
        if value and name in declared:
            # A longer value would be refused, and this model cannot shorten it in a better way.
            limit = declared[name].get("maxLength")
            arguments[name] = value[:limit] if isinstance(value, str) and isinstance(limit, int) else value
    return None if schema is None or not set(schema.get("required") or ()) <= set(arguments) else arguments


# Answers


def _reply(turn: QuestionState) -> list[Block]:
    texts = {key: versions[turn.language == "zh"] for key, versions in _TEXTS.items()}
    lines = [texts.get(f"failed {name}", texts["failed"]).format(reason) for name, reason in turn.problems.items()]
    if turn.to_remember:
        if REMEMBER not in turn.problems:
            lines.append(texts["saved" if REMEMBER in turn.called else "no memory"].format(turn.to_remember))
        return [text_block("\n\n".join(lines))]
    asks_for_model = turn.small_talk in ("about", "roles")
    notice = [text_block(f"\n\n{texts['notice']}")] if asks_for_model or not turn.is_noticed else []
    if turn.small_talk:
        return [text_block(texts[turn.small_talk]), *notice]
    memories, quotes = _fitting_memories(turn), _quotes(turn)
    lines += [texts["memory"].format(memory) for memory in memories]
    lines += [texts["part"].format(part) for part in turn.unmatched if quotes]
    if turn.wants_summary:
        lines.append(texts["summary" if quotes else "no summary"])
    elif quotes:
        lines.append(texts["also" if memories else "quotes"])
    elif not memories and SEARCH not in turn.problems:
        lines.append(texts["unsearched" if turn.hits is None else "nothing"])
    return [*([text_block("\n\n".join(lines))] if lines else []), *quotes, *notice]


class _Choice(NamedTuple):
    """A passage, the share of the question's words in its best sentence, and the sentences to quote.

    ``evidence`` that the passage answers: its relevance as a whole, and the words in one place.
    """

    hit: FoundPassage
    share: float
    span: range
    evidence: float


def _quotes(turn: QuestionState) -> list[Block]:
    """Return the quotes: those about as good as the best one, or for a question of several parts one for each part."""
    if turn.wants_summary:
        starts = turn.beginnings or _documents(turn)
        return [_quote(hit, range(min(1 + FOLLOWING, len(hit.sentences)))) for hit in starts]
    ranked = [_rank(turn, part) for part in question_parts(turn.question, turn.unmatched)]
    chosen: dict[tuple[int, range], _Choice] = {}
    for choices in ranked:
        if len(ranked) == 1:
            usable = [choice for choice in choices if choice.evidence >= NEAR * choices[0].evidence]
        else:
            # The relevance of a passage is that for the whole question. So the best passage of one part also comes
            # first for another part, and answers that one only if it has its words.
            quoted = {index for index, _ in chosen}
            usable = [choice for choice in choices if choice.share >= SURE or choice.hit.index not in quoted][:1]
        chosen |= {(choice.hit.index, choice.span): choice for choice in usable}
    return [_quote(choice.hit, choice.span) for choice in list(chosen.values())[:MAX_QUOTES]]


def _documents(turn: QuestionState) -> list[FoundPassage]:
    """Return the best passage of each document to summarise: of those whose title the message names best."""
    wanted, hits = terms(turn.question), turn.hits or []
    shared = [len(wanted & hit.title_terms) for hit in hits]
    named = [hit for hit, count in zip(hits, shared, strict=True) if count == max(shared)]
    # Reversed twice, so that of one document the first passage stays and the order is kept.
    return list({hit.source: hit for hit in reversed(named)}.values())[::-1][:MAX_QUOTES]


def question_parts(question: str, unmatched: Sequence[str] = ()) -> list[str]:
    """Return the parts of a message that asks several questions or compares several things, or the whole message.

    In "Compare the noise of the Brisa 300 and the Brisa 900", both parts ask for the noise. Parts that the search
    reports as unmatched are left out, unless nothing is left.
    """
    is_comparison = _COMPARE.search(question) is not None
    pieces = (_CONJUNCTION if is_comparison else _NEXT_QUESTION).split(question)
    parts = [piece for piece in pieces if content_words(piece)]
    if not 1 < len(parts) <= MAX_QUOTES:
        return [question]
    if is_comparison and (attribute := _ATTRIBUTE.match(parts[0])):
        parts[1:] = [attribute[0] + part for part in parts[1:]]
    missing = [terms(part) for part in unmatched]
    return [part for part in parts if not any(words <= terms(part) for words in missing)] or [question]


def _rank(turn: QuestionState, question: str) -> list[_Choice]:
    """Return the passages that may answer a part of the question, best first."""
    form, wanted = asked_form(question), question_terms(question, turn.before)
    least = 0.0 if turn.by_meaning else LEAST
    choices: list[_Choice] = []
    for hit in turn.hits or []:
        shares = rate(wanted, hit, form)
        is_able = hit.score > WITHOUT_CODE and any(hit.has_form(form, place) for place in range(len(shares)))
        if max(shares) >= (least if is_able else SURE):
            choices.append(_Choice(hit, max(shares), _span(hit, shares), hit.score + max(shares)))
    # Beside a complete answer, a passage that only shares some words is noise.
    complete = [choice for choice in choices if choice.share >= SURE]
    return sorted(complete or choices, key=lambda choice: -choice.evidence)


def _span(hit: FoundPassage, shares: Sequence[float]) -> range:
    """Return the sentences to quote: the best one, with the sentences needed to understand it.

    Of rows that are equally good, all are quoted. An incomplete answer mostly follows its subject. If the passage ends
    there, its whole end is quoted, and of a passage that only its meaning found the beginning.
    """
    sentences, share = hit.sentences, max(shares)
    place = shares.index(share)
    end, table = place + 1, hit.table_of(place)
    if share < ENOUGH:
        return range(_fitting(sentences))
    if share < SURE and not table and place + FOLLOWING >= len(sentences):
        return range(len(sentences) - _fitting(sentences[::-1]), len(sentences))
    if table:
        while end < min(table.last, place + MAX_ITEMS) and shares[end] == share:
            end += 1
    elif sentences[place].rstrip().endswith((":", "：")):
        while end < len(sentences) and end - place <= MAX_ITEMS and _ITEM.match(sentences[end]):
            end += 1
    elif share < SURE:
        end = min(end + FOLLOWING, len(sentences))
    return range(place, end)


def _fitting(sentences: Sequence[str]) -> int:
    """Return how many sentences one quote may have, at least one."""
    return max(1, sum(size <= MAX_QUOTED for size in itertools.accumulate(map(len, sentences))))


def _quote(hit: FoundPassage, span: range) -> Block:
    """Return a block quote with its citation in the form of the Messages API. Rows are a table with their header."""
    paragraphs: list[str] = []
    shown: PassageTable | None = None
    for place in span:
        table, text = hit.table_of(place), " ".join(hit.sentences[place].split())
        if table and table is not shown:
            paragraphs.append("\n> ".join(map(_row, (table.header, ["---"] * len(table.header)))))
        if table:
            paragraphs[-1] += f"\n> {_row(_cells(hit.sentences[place]))}"
        elif len(span) > 1 and hit.is_header(place):
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
        "cited_text": "".join(hit.sentences[span.start : span.stop]),
    }
    return {"type": "text", "text": "\n\n> " + "\n>\n> ".join(paragraphs), "citations": [citation]}


def _cells(row: str) -> tuple[str, ...]:
    """Return the cells of a row as the retriever writes it: ``Ada |  | 50``. The outer spaces may be missing."""
    return tuple(" ".join(cell.split()) for cell in f" {row.strip()} ".split(" | "))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _fitting_memories(turn: QuestionState) -> list[str]:
    recalled = FoundPassage("", tuple(with_cues for _, with_cues in turn.memories))
    shares = rate(question_terms(turn.question, turn.before), recalled)
    floor = max(ENOUGH, NEAR * max(shares, default=0.0))
    rated = sorted(zip(shares, turn.memories, strict=True), key=lambda pair: -pair[0])
    return list(dict.fromkeys(content for share, (content, _) in rated if share >= floor))[:MAX_QUOTES]


def rate(wanted: Mapping[str, float], passage: FoundPassage, form: AnswerForm | None = None) -> list[float]:
    """Return, for each sentence of a passage, the matched share of the question's weight, 0..1.

    A sentence with an answer of the form that is asked for has the words that name the form ("cost").
    """
    named = {term for term in wanted if form and form.words.fullmatch(term)}
    total, title = sum(wanted.values()) or 1.0, passage.title_terms
    numbers = {term for term in title if term.isdigit()}  # under "Brisa 300", "300 m³/h" is another number
    shares = []
    for place, own in enumerate(map(terms, passage.sentences)):
        table = passage.table_of(place)
        around = title | (terms(" ".join(table.header)) if table else frozenset())
        is_able = passage.has_form(form, place)
        own = (own | named if is_able else own) - numbers
        held = sum(weight * (1.0 if term in own else TITLE * (term in around)) for term, weight in wanted.items())
        # The words of a header count for each row below it; the header itself answers nothing.
        shares.append(0.0 if passage.is_header(place) else held / total * (1.0 if is_able else FORMLESS))
    return shares


def question_terms(text: str, before: str = "") -> dict[str, float]:
    """Return the terms of a question with their weights. Terms of the earlier questions count half, numbers double."""
    return dict.fromkeys(terms(before), 0.5) | {term: 1.0 + any(map(str.isdigit, term)) for term in terms(text)}


# Patterns and texts

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
_COMPARE = re.compile(r"\bcompar|\bdifferen|\bversus\b|\bvs\b|vergleich|unterschied|比较|对比|区别|不同|分别", re.I)
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
_UNMATCHED = re.compile(r'No passage matches this part: "([^"]*)"\.')
_PARENTHESIS = re.compile(r"\([^()]*\)\Z")
_ITEM = re.compile(r"\s*(?:[-*•·–]\s|\(?\d{1,3}[.)、]|[（(]?[一二三四五六七八九十]+[)）、])")
_TEXTS: Mapping[str, tuple[str, str]] = {
    "quotes": ("The documents say:", "文档中写道："),
    "also": ("And the documents say:", "文档中还写道："),
    "part": ("I found nothing about this: {}", "没有找到与此相关的内容：{}"),
    "summary": (
        "A summary needs a language model. The documents begin like this:",
        "写总结需要语言模型。以下是文档的开头：",
    ),
    "no summary": ("A summary needs a language model.", "写总结需要语言模型。"),
    "memory": ("From memory: {}", "记忆中有：{}"),
    "nothing": (
        "I found nothing in the documents that answers this. Other words may find it.",
        "在文档中没有找到能回答这个问题的内容，可以换个说法再问。",
    ),
    "unsearched": (
        "I have no documents to search here, and nothing in memory answers this.",
        "这里没有可以查找的文档，记忆中也没有相关内容。",
    ),
    "greeting": (
        "Hello! Ask me something, and I will quote what the documents say about it.",
        "您好！请提问，我会引用文档中的相关原文来回答。",
    ),
    "thanks": ("You are welcome.", "不客气。"),
    "about": (
        "I am the extractive mode of this server: I search the documents and quote the best passages.",
        "我是本服务器的摘录模式：在文档中查找并引用最相关的原句。",
    ),
    "roles": ("Writing a role needs a language model.", "编写角色需要语言模型。"),
    "notice": (
        "I can only quote, because no language model is configured. For written answers set ANTHROPIC_API_KEY for "
        "Claude, or name an OpenAI-compatible service or a local Ollama in the providers file, and restart.",
        "这里只能摘录原文，因为没有配置语言模型。如需生成回答，"
        "请设置 ANTHROPIC_API_KEY 使用 Claude，或在 providers 文件中填写兼容 OpenAI 的服务或本地 Ollama，然后重启。",
    ),
    "saved": ("I will remember: {}", "记住了：{}"),
    "no memory": ("I have no memory here, so I cannot save that.", "这里没有记忆功能，无法保存。"),
    "failed": ("A tool failed: {}", "工具出错：{}"),
    f"failed {ACTION}": ("My role could not be activated: {}", "角色未能激活：{}"),
    f"failed {RECALL}": ("My memory could not be read: {}", "未能读取记忆：{}"),
    f"failed {REMEMBER}": ("That could not be saved: {}", "未能保存：{}"),
    f"failed {SEARCH}": ("The documents could not be searched: {}", "未能查找文档：{}"),
}
"""Each text in English and Chinese."""
