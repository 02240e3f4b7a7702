"""The cost of foreign text grows only with its length: every parser of foreign text, over doubling sizes.

A parser gets each hostile shape longer and longer, until it works for a measurable time. At eight times that length it
may take eight times as long, and up to three times that on a busy machine. A quadratic parser takes sixty-four times as
long on any machine. CPU times of this thread are measured, and only a bad one is measured again.
"""

import contextlib
import gc
import io
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from rich.console import Console

from agentic_rag.base.errors import AgenticRagError
from agentic_rag.base.events import Reference
from agentic_rag.base.forms import line, one_line
from agentic_rag.base.ids import DocumentId
from agentic_rag.base.messages import Block as MessageBlock
from agentic_rag.base.messages import Message, Passage, clean_text, text_block, tool_result_block, user_message
from agentic_rag.base.redaction import Pieces, Redaction
from agentic_rag.chat.screen import Screen
from agentic_rag.conversations.titles import title_of
from agentic_rag.directory.languages import languages_of
from agentic_rag.domains import components
from agentic_rag.models import extractive, words
from agentic_rag.models.base import BlockStarted, BlockStopped, Citation, ModelRequest, TextDelta
from agentic_rag.models.marks import MarkedAnswer
from agentic_rag.models.sse import SSEReader
from agentic_rag.runtime.core.arguments import find_problem
from agentic_rag.runtime.core.citations import MAX_REFERENCES, verify
from agentic_rag.runtime.core.results import cut_at_section, head_and_tail
from agentic_rag.runtime.core.sent_messages import CitablePassage
from agentic_rag.tools.entries import placeholders
from agentic_rag.tools.entries.reading import read_entries, read_name
from agentic_rag.tools.launch.bundles import McpbManifest
from agentic_rag.tools.launch.facts import read_npm_facts
from agentic_rag.tools.launch.registry_clients import reason_of
from agentic_rag.tools.launch.requests import local_name, plan_line, propose_template
from agentic_rag.tools.listing import clean_description, user_name
from agentic_rag.tools.transports.http import Announcement
from agentic_rag.tools.transports.stdio import parse_line
from mcp_servers.promptx import dpml
from mcp_servers.promptx.lint import lint
from mcp_servers.retriever.calibration import script, split
from mcp_servers.retriever.chunking import chunk_document
from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats import sheets
from mcp_servers.retriever.formats.html import read_html
from mcp_servers.retriever.formats.markdown import read_markdown
from mcp_servers.retriever.formats.text import decode, paragraphs
from mcp_servers.retriever.lexical import document_vectors
from mcp_servers.retriever.sentences import split_sentences

FLOOR_SECONDS = 0.002
"""Shorter times are not significant, so the text is lengthened until it takes longer."""
SMALLEST, LARGEST = 1 << 8, 1 << 15
"""Characters. A parser that finishes `LARGEST` before a time is measurable is fast enough."""
TIMES_LONGER, BOUND = 8, 24
ATTEMPTS = 4

Parser = Callable[[str], object]
Shape = Callable[[int], str]


def roles(text: str) -> None:
    """Activate a role, show it in a list and check it; also as a file that a role names."""
    for document_text in (text, f"<role><personality>{text}</personality></role>"):
        document = dpml.parse("role", dpml.normalise(document_text))
        dpml.render(document, "all", lambda kind, key: "short" if key.startswith("x") else None)
        dpml.title(document_text)
        lint("role", document_text, "file", lambda kind, key: None)
    lint("thought", f"<thought>{text}</thought>", "file", lambda kind, key: None)
    naming = dpml.parse("role", "<role><personality>@!thought://a</personality></role>")
    dpml.render(naming, "all", lambda kind, key: text)


def prompts(text: str) -> None:
    components.clean(text)
    languages_of(text)


def titles(text: str) -> None:
    title_of(text)
    one_line(text)
    clean_text(text)
    _refused(lambda: line("field", text, len(text), required=True, breaks=True))


def event_streams(text: str) -> None:
    data = f"data: {text}\n\n".encode()
    SSEReader().feed(data)
    reader = SSEReader()
    for start in range(0, len(data), 7):
        reader.feed(data[start : start + 7])


def protocol_lines(text: str) -> None:
    parse_line(text.encode())
    parse_line(b'{"jsonrpc":"2.0","id":1,"result":{"a":"' + text.encode())
    parse_line(json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"a": text}}).encode())


def marks(text: str) -> None:
    passage: MessageBlock = {"type": "search_result", "title": "t", "source": "s"}
    passage["content"] = [text_block("some words"), text_block("others")]
    for size in (9, len(text)):
        answer = MarkedAnswer([passage])
        answer.take(BlockStarted(0, text_block("")))
        for start in range(0, len(text), size):
            answer.take(TextDelta(0, text[start : start + size]))
        answer.take(BlockStopped(0, text_block(text)))


def announcements(text: str) -> None:
    """An event stream in the smallest possible pieces."""
    for piece in (1, 5, len(text)):
        stream = Announcement(_Silence(), _stay)
        data = f"event: endpoint\ndata: {text}".encode()
        for start in range(0, len(data), piece):
            list(stream.take(data[start : start + piece]))


class _Silence(httpx2.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for nothing in list[bytes]():
            yield nothing


async def _stay(address: str) -> bool:
    return False


def installers(text: str) -> None:
    reason_of(text)


def question_texts(text: str) -> None:
    extractive.question_terms(text)
    words.content_words(text)
    words.terms(text)
    words.language_of(text)
    extractive.pieces(text)
    extractive.decide(_request(user_message(f"{text} x"), system=f"{extractive.ACTION} role {text}"))


def tool_answers(text: str) -> None:
    hit: MessageBlock = {"type": "search_result", "title": "t", "source": "s", "content": [text_block(f"{text} x")]}
    calls = [("a", extractive.SEARCH), ("b", extractive.RECALL)]
    uses: list[MessageBlock] = [{"type": "tool_use", "id": use_id, "name": name, "input": {}} for use_id, name in calls]
    answers = [tool_result_block("a", [hit]), tool_result_block("b", [text_block(f"- [ATOMIC 0.8] {text}\n- {text}")])]
    extractive.decide(
        _request(user_message("what"), {"role": "assistant", "content": uses}, {"role": "user", "content": answers})
    )
    messages = [
        {"role": "user", "text": content} for content in (text, f"[summary of the earlier conversation]\n{text}")
    ]
    extractive.decide(_request(user_message("\n".join(map(json.dumps, messages))), system="Summarize the conversation"))


def entries(text: str) -> None:
    pasted: list[dict[str, object]] = [
        {"command": text},
        {"command": "npx", "args": ["-y", text, f"--{text}"]},
        {"command": "npx", "args": ["-y", "a"], "env": {"A": text}},
        {"url": f"https://{text}", "headers": {"X": text}},
        {"url": f"https://a.b/?{text}"},
    ]
    for entry in pasted:
        _refused(lambda entry=entry: read_entries({"a": entry}))  # type: ignore[misc]
    _refused(lambda: read_name(text, "path"))


def descriptions(text: str) -> None:
    """A ``server.json``, the manifest of a bundle, npm's answer about a package, a requested line."""
    field = {"type": "named", "name": f"--{text}", "valueHint": text, "default": text}
    packages = [{"registryType": "npm", "identifier": text, "version": "1", "packageArguments": [field]}]
    _refused(lambda: read_entries({"name": text, "packages": packages}))
    config = {"args": [f"${{user_config.{text}}}", text], "env": {"A": text, text[:100]: "b"}}
    manifest = {"name": text, "version": "1", "server": {"type": "node", "entry_point": "a.js", "mcp_config": config}}
    with contextlib.suppress(ValueError):
        McpbManifest(manifest, {"a.js"}).read("", 0, 0)
    read_npm_facts(text)
    read_npm_facts(json.dumps({"name": text, "bin": {text: text}, "scripts": {"install": text}}))
    plan_line(text, [text], [])
    plan_line("node", [text], [])
    propose_template([text, f"--a={text}", f"${{{text}}}"])
    local_name(text)


def variables(text: str) -> None:
    placeholders.find_problem(text)
    placeholders.find_problem(text, secret=True)
    placeholders.refers_only(text)
    _refused(lambda: placeholders.expand(text, lambda name: "value"))


def tool_lists(text: str) -> None:
    clean_description(text)
    user_name(text, text)


def results(text: str) -> None:
    cut_at_section(text, 10**9)
    head_and_tail(text, "ref")


def plain_documents(text: str) -> None:
    with contextlib.suppress(DocumentError):
        decode(text.encode())
    list(paragraphs(text))


def chunks(text: str) -> None:
    list(split_sentences(text))
    chunk_document(ParsedDocument(tuple(Block(kind, text) for kind in ("prose", "code", "list", "table"))), "d", "n")


def headings(text: str) -> None:
    blocks = [Block("heading", piece, 1 + index % 6) for index, piece in enumerate(text.split("\n"))]
    chunk_document(ParsedDocument(tuple(blocks)), "d", "n")


LISTED: dict[str, Callable[[int], tuple[dict[str, object], object]]] = {
    "uniqueItems": lambda n: ({"uniqueItems": True}, [{"a": at} for at in range(n)]),
    "uniqueItems of long ones": lambda n: ({"uniqueItems": True}, ["x" * 100 + str(at) for at in range(n)]),
    "many choices": lambda n: ({"items": {"anyOf": [{"const": at} for at in range(n)]}}, list(range(n, 2 * n))),
    "many values": lambda n: ({"items": {"enum": [{"a": at} for at in range(n)]}}, [{"a": -1}] * n),
    "one of many": lambda n: ({"items": {"oneOf": [{"type": "object"}] * n}}, [{}] * n),
    "many required": lambda n: ({"items": {"required": [str(at) for at in range(n)]}}, [{}] * n),
    "contains": lambda n: ({"allOf": [{"contains": {"const": "a"}}] * n}, ["b"] * n + ["a"]),
    "long messages": lambda n: ({"anyOf": [{"type": "null"}] * n}, "x" * 50 * n),
    "unevaluated": lambda n: ({"allOf": [{"properties": {"a": {}}}] * n, "unevaluatedProperties": {}}, {"a": [0] * n}),
}


@pytest.mark.parametrize("kind", LISTED)
def test_the_checking_time_grows_linearly_with_schema_and_arguments(kind: str) -> None:
    def check(size: str) -> None:
        schema, value = LISTED[kind](int(size))
        find_problem({"type": "object", "properties": {"a": schema}}, {"a": value}, user=True)

    check("2")  # every late import is done here
    ratio = least_ratio(lambda: (cost(check, "4000"), cost(check, "500")), BOUND)
    assert ratio < BOUND, f"{TIMES_LONGER} times as much took {ratio:.0f} times as long"


def _know(*values: str) -> Redaction:
    redaction = Redaction()
    for number, value in enumerate(values):
        redaction.add(f"S{number}", value)
    return redaction


PERIODIC = _know("a" * 4_000 + "b", "ab" * 2_000, "a" * 8, "aaaaaaab" * 3, "[" * 3_000 + "x", "<role>" * 600 + "!")
SHORTER = _know("a" * 200 + "b", "ab" * 90, "[" * 150 + "x", "<role>" * 30 + "!", " " * 99)
"""For pieces, each of which may cost as much as the longest value."""


def redaction(text: str) -> None:
    """Values that the text almost equals, repeated."""
    PERIODIC(text)
    PERIODIC.found_in([text])
    for size, secrets in ((5, SHORTER), (len(text), PERIODIC)):
        pieces = Pieces(secrets)
        for start in range(0, len(text), size):
            pieces.take(text[start : start + size])
        pieces.end()


def search_text(text: str) -> None:
    document_vectors([text])
    split(text)
    script(text)


def screen(text: str) -> None:
    screen_under_test = Screen(Console(file=io.StringIO()), Console(file=io.StringIO()))
    screen_under_test.show("{}", {"type": "text", "text": text, "seq": 1})
    screen_under_test.problem(text)


PARSERS: tuple[Parser, ...] = (
    *(
        roles,
        prompts,
        titles,
        event_streams,
        protocol_lines,
        marks,
        question_texts,
        tool_answers,
        entries,
        variables,
        descriptions,
    ),
    *(
        announcements,
        installers,
        tool_lists,
        results,
        plain_documents,
        chunks,
        headings,
        search_text,
        screen,
        redaction,
    ),
)

UNITS = (
    *("<", "[", "`", "&", "${", "\n", " ", "a", "中", ".", "-", "|", '"', "\\", "1 ", "1,", "a+", "a://", "\n \n\t"),
    *("```\n", "~~~x\n", "\n- a\n  ", "[[1", "<!--", "<a ", "<a>", "</", "<a href='", "&#", "{{", "@!thought://a "),
    *("<!", "<![", "<?", "<a b='<a b=\"", '<a b="', "<script>", "<table>", "&#9", "<p hidden>"),
    *("[[1]]", "[[1]] ", ". [[2]]", "a[[1]]", "word [[9]]"),
    *(
        "<role>",
        "</role>",
        "<plan>a</plan>",
        "<td rowspan=9>",
        "data: x\n\n",
        "data: x\n",
        "\r",
        "```a```",
        "\ud7ff\u202e",
        "# a\n",
    ),
)
"""Repeated, each of them is bait for some scanner: openings without an end, ends without an opening, new beginnings."""

OPEN_AND_CLOSED = (("<a>", "</a>"), ("[", "]"), ("(", ")"), ("<role>", "</role>"), ("`", "` "), ("**", "**"))


def _shapes() -> Iterator[tuple[str, Shape]]:
    for unit in UNITS:
        yield f"{unit!r} again and again", lambda size, unit=unit: f"x{unit * (size // len(unit))}\x01y"  # type: ignore[misc]
    for first, last in OPEN_AND_CLOSED:
        pair = len(first) + len(last)
        yield (
            f"nested {first!r}",
            lambda size, first=first, last=last, pair=pair: first * (size // pair) + "x" + last * (size // pair),  # type: ignore[misc]
        )
    yield "longer and longer fences", lambda size: "\n".join("`" * at for at in range(3, int((2 * size) ** 0.5) + 3))
    yield "longer and longer marks", lambda size: " ".join("`" * at for at in range(1, int((2 * size) ** 0.5) + 1))
    yield "many names", lambda size: " ".join(f"<t{at}>" for at in range(size // 7))
    yield "many files", lambda size: " ".join(f"@!thought://x{at}" for at in range(size // 16))


SHAPES = dict(_shapes())
SOME = 12
"""Every twelfth shape is tried each time, with other ones for each parser. All shapes are tried nightly."""
some_shapes = pytest.mark.parametrize(
    "every", [SOME, pytest.param(1, marks=pytest.mark.nightly("every parser with every hostile shape"))]
)


def shapes_for(number: int, every: int) -> dict[str, Shape]:
    """Return each ``every``-th shape, beginning at a place that depends on the parser's number."""
    return dict(itertools.islice(SHAPES.items(), number % every, None, every))


def _request(*messages: Message, system: str = "") -> ModelRequest:
    return ModelRequest(model="m", system=(text_block(system),), messages=messages, tools=(), max_tokens=1000)


def _refused(work: Callable[[], object]) -> None:
    with contextlib.suppress(AgenticRagError):
        work()


def cost(parse: Parser, text: str) -> float:
    """Seconds of CPU."""
    start = time.thread_time()
    parse(text)
    return time.thread_time() - start


def assert_linear(parse: Parser, shape: Shape) -> None:
    """Fail if a text that is `TIMES_LONGER` takes more than `BOUND` times as long."""
    sizes = (SMALLEST << step for step in itertools.count())
    size = next(size for size in sizes if size >= LARGEST or cost(parse, shape(size)) >= FLOOR_SECONDS)
    short, long = shape(size), shape(size * TIMES_LONGER)
    ratio = least_ratio(lambda: (cost(parse, long), cost(parse, short)), BOUND)
    assert ratio < BOUND, f"{TIMES_LONGER} times {size} characters took {ratio:.0f} times as long"


def least_ratio(measure: Callable[[], tuple[float, float]], bound: float) -> float:
    """Measure a longer and a shorter run until their ratio is below the bound; return the least ratio."""
    ratio = float("inf")
    for _ in range(ATTEMPTS):
        long, short = measure()
        ratio = min(ratio, long / max(short, FLOOR_SECONDS))
        if ratio < bound:
            break
    return ratio


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """Its cost grows with its size, whoever wrote it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@some_shapes
@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
def test_hostile_text_is_read_in_linear_time(parse: Parser, every: int) -> None:
    for name, shape in shapes_for(PARSERS.index(parse), every).items():
        try:
            assert_linear(parse, shape)
        except AssertionError as exc:
            raise AssertionError(f"{name}: {exc}") from exc


def test_each_citation_of_a_turn_costs_as_much_as_the_first() -> None:
    texts = tuple(f"Sentence {number}." for number in range(500))

    def cite(size: str) -> int:
        references: list[Reference] = []
        for number in range(int(size)):
            index = number % len(texts)
            source = Passage(DocumentId("d"), "d.md", (f"c{number // len(texts)}",) * len(texts))
            citation = Citation(0, index, index + 1, texts[index], {})
            reference = verify(citation, [CitablePassage(source, texts)], references)
            if reference is not None and reference.number > len(references):
                references.append(reference)
        return len(references)

    assert cite("4000") == MAX_REFERENCES
    ratio = least_ratio(lambda: (cost(cite, "8000"), cost(cite, "1000")), BOUND)
    assert ratio < BOUND, f"{TIMES_LONGER} times as many took {ratio:.0f} times as long"


@pytest.mark.parametrize("known", ["a" * 40, "ab" * 500 + "x", "secret-value-{}-of-some-length"])
def test_the_cost_of_redaction_does_not_grow_with_the_secrets(known: str) -> None:
    text = "a" * 200_000 + "ab" * 100_000 + "The quick brown fox. secret-value-7 " * 5_000
    few, many = (_know(*(known.format(at) + str(at) for at in range(count))) for count in (2, 150))
    few(text), many(text)  # both have computed their values now
    ratio = least_ratio(lambda: (cost(many, text), cost(few, text)), 10)
    assert ratio < 10, f"75 times as many secrets cost {ratio:.0f} times as much"


@some_shapes
@pytest.mark.parametrize("ending", ["md", "csv", "html"])
def test_hostile_files_are_read_in_linear_time(ending: str, every: int, tmp_path: Path) -> None:
    path = tmp_path / f"hostile.{ending}"
    readers = {"md": read_markdown, "csv": sheets.read_csv, "html": read_html}
    reader, number = readers[ending], list(readers).index(ending)

    def parse(text: str) -> None:
        path.write_text(text, "utf-8")
        reader(path, ParseLimits())

    for shape in shapes_for(number, every).values():
        assert_linear(parse, shape)
