"""The style rule of docs/style.md: few phrases of the project's old dialect in the texts that people read."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_layers import ROOT, docstrings, nodes, sources, text

DIALECT = re.compile(
    r"\b(anew|by now|whoever|whatever|wherever|is told|are told|was told|told of|looked at|put down|put aside|taken up"
    r"|goes on|gone on|made of|of its own|of their own|says of|said of|at a time|lies in|as it is"
    r"|what (?:is|was|are|has|there|it|they)|who (?:is|has|was|may|asks?)|given back|gives? back|in between|hardly"
    r"|anybody|nobody|somebody|everybody)\b"
)
"""In lower case: a search that ignores case takes three times as long."""
MOST_PER_THOUSAND = 2.0

TEXT = r'"""(?:\\.|[^\\])*?"""' + r"|'''(?:\\.|[^\\])*?'''" + r'|"(?:\\.|[^"\\\n])*"' + r"|'(?:\\.|[^'\\\n])*'"
COMMENT = re.compile(TEXT + r"|(#[^\n]*)", re.DOTALL)
"""A comment, or a text, which may contain the sign that begins a comment. `tokenize` takes twenty times as long."""

DOCSTRING = re.compile(r'^ *r?"""(.*?)"""', re.DOTALL | re.MULTILINE)
"""A text that begins a line. The tests are not parsed, because that takes seconds."""


def docstrings_and_comments() -> Iterator[str]:
    for path in sources():
        yield from (comment for comment in COMMENT.findall(text(path)) if comment)
        yield from (docstring for _, docstring in docstrings(path))


def docstrings_and_comments_of_tests() -> Iterator[str]:
    for path in ROOT.glob("tests/**/*.py"):
        written = path.read_text(encoding="utf-8")
        yield from (comment for comment in COMMENT.findall(written) if comment)
        yield from DOCSTRING.findall(written)


def texts_in_code() -> Iterator[str]:
    """Yield the string constants with words: errors, command-line help and logs, without docstrings."""
    for path in sources():
        statements = {id(node.value) for node in nodes(path, ast.Expr)}
        constants = [node.value for node in nodes(path, ast.Constant) if id(node) not in statements]
        yield from (value for value in constants if isinstance(value, str) and " " in value.strip())


def pages() -> Iterator[str]:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if path.name != "style.md":  # it quotes the phrases
            yield path.read_text(encoding="utf-8")


def console_texts() -> Iterator[str]:
    for path in sorted((ROOT / "agentic_rag/server/web/lang/en").glob("*.js")):
        yield from re.findall(r': "((?:[^"\\]|\\.)*)"', path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "kind", [docstrings_and_comments, docstrings_and_comments_of_tests, texts_in_code, pages, console_texts]
)
def test_texts_use_few_phrases_of_the_old_dialect(kind: object) -> None:
    assert callable(kind)
    words = phrases = 0
    for written_text in kind():
        words += len(written_text.split())
        phrases += len(DIALECT.findall(written_text.lower()))
    assert 1000 * phrases / words <= MOST_PER_THOUSAND, f"{phrases} in {words} words"
