"""The style rule of docs/style.md: few phrases of the project's old dialect in the texts that people read."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

DIALECT = re.compile(
    r"\b(anew|by now|whoever|whatever|wherever|is told|are told|was told|told of|looked at|put down|put aside|taken up"
    r"|goes on|gone on|made of|of its own|of their own|says of|said of|at a time|lies in|as it is"
    r"|what (?:is|was|are|has|there|it|they)|who (?:is|has|was|may|asks?)|given back|gives? back|in between|hardly"
    r"|anybody|nobody|somebody|everybody)\b",
    re.IGNORECASE,
)
MOST_PER_THOUSAND = 2.0
PACKAGES = ("agentic_rag", "mcp_servers")


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def docstrings_and_comments() -> Iterator[str]:
    for path in modules():
        source = path.read_text(encoding="utf-8")
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        yield from (token.string for token in tokens if token.type == tokenize.COMMENT)
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield node.value.value


def texts_in_code() -> Iterator[str]:
    """Yield the string constants with words: errors, command-line help and logs, without docstrings."""
    for path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
        yield from (node.value for node in constants if isinstance(node.value, str) and " " in node.value.strip())


def pages() -> Iterator[str]:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if path.name != "style.md":  # it quotes the phrases
            yield path.read_text(encoding="utf-8")


def console_texts() -> Iterator[str]:
    for path in sorted((ROOT / "agentic_rag/server/web/lang/en").glob("*.js")):
        yield from re.findall(r': "((?:[^"\\]|\\.)*)"', path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", [docstrings_and_comments, texts_in_code, pages, console_texts])
def test_texts_use_few_phrases_of_the_old_dialect(kind: object) -> None:
    assert callable(kind)
    words = phrases = 0
    for text in kind():
        words += len(text.split())
        phrases += len(DIALECT.findall(text))
    assert 1000 * phrases / words <= MOST_PER_THOUSAND, f"{phrases} in {words} words"
