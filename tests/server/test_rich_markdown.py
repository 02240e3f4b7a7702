"""Markdown as models write it: highlighted code, formulas, tasks, footnotes, definitions; and malformed input."""

import html
import re
from itertools import product

import pytest

from agentic_rag.conversations.message_code import LANGUAGES, MAX_HIGHLIGHTED
from agentic_rag.conversations.message_html import to_html
from agentic_rag.conversations.message_math import MAX_FORMULA
from tests.growth import growth


def text_of(fragment: str) -> str:
    """Return the text of a fragment as a reader sees it."""
    return html.unescape(re.sub(r"<[^>]+>", "", fragment))


CODE = {
    "python": ("def f(x):\n    return 'a' + str(1)  # why\n", {"k", "f", "s", "n", "c"}),
    "ts": ("const x: number = f('a', 1); // why\n", {"k", "f", "s", "n", "c"}),
    "sql": ("SELECT 1 FROM t WHERE a = 'b' -- why\n", {"k", "s", "n", "c"}),
    "json": ('{"a": [1, "b", true]}\n', {"k", "s", "n"}),
    "diff": ("-old\n+new\n", {"d", "i"}),
    "bash": ("echo 'a' # why\n", {"f", "s", "c"}),
}


@pytest.mark.parametrize("language", CODE)
def test_code_has_colours_and_keeps_its_text(language: str) -> None:
    code, kinds = CODE[language]
    fragment = to_html(f"```{language}\n{code}```")
    assert f'<code class="language-{language}">' in fragment
    assert set(re.findall(r'<span class="hl-(\w)">', fragment)) == kinds
    assert text_of(fragment) == f"{code}\n"


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_every_language_version_keeps_any_text(language: str) -> None:
    code = '<a href="x">\'b\' & {{c}}\n\t\\ " ` $ # // /* 1.5e3 -- é 中 \x0b \u2028 end\n'
    assert text_of(to_html(f"```{language}\n{code}```")) == f"{code}\n"


UNITS = ["{", "<a ", "'\\", "/", "a ", "#"]
GROWING = list(product(["html", "javascript", "perl", "php", "python", "ruby", "bash", "yaml", "cpp"], UNITS))


@pytest.mark.parametrize(
    ("language", "unit"),
    [
        *GROWING[::7],
        *(
            pytest.param(*pair, marks=pytest.mark.nightly("every seventh pair is tried every time"))
            for number, pair in enumerate(GROWING)
            if number % 7
        ),
    ],
)
def test_the_highlighting_time_grows_linearly_with_the_code(language: str, unit: str) -> None:
    def render(text: str) -> None:
        to_html(f"```{language}\n{text}\n```")

    short, long = (((unit * (390 // len(unit)) + "\n") * lines) for lines in (5, 20))
    assert growth(render, short, long) < 11, "four times the code: quadratic growth would be sixteen times"


def test_long_code_and_code_in_unknown_languages_have_no_colours() -> None:
    assert "<span" not in to_html("```brainmelt\ndef f(): pass\n```")
    for code in ("x = 1\n" * (MAX_HIGHLIGHTED // 6 + 1), "1 " * 300 + "\n", "x = 1\n" + "\n" * 30):
        fragment = to_html(f"```python\n{code}```")
        assert "<span" not in fragment
        assert text_of(fragment) == f"{code}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Area $a^2$.", '<p>Area <math display="inline"><mrow><msup><mi>a</mi><mn>2</mn></msup></mrow></math>.</p>'),
        (r"Area \(a^2\).", "<msup><mi>a</mi><mn>2</mn></msup>"),
        ("$$\n\\frac{a}{b}\n$$", '<div class="formula"><math display="block"><mrow><mfrac>'),
        ("\\[\n\\frac{a}{b}\n\\]", '<div class="formula"><math display="block"><mrow><mfrac>'),
        ("- so\n  $$a+b$$", '<div class="formula"><math display="block">'),
        ("First\n$$a+b$$\nthen", '<p>First</p>\n<div class="formula">'),
        (r"$\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$", "<mtable><mtr><mtd><mn>1</mn></mtd>"),
        (r"$\text{if } x < y$", "<mo>&lt;</mo>"),
        (r"$2 \sin^2 t$", '</mn><mspace width="0.167em"></mspace><msup><mi>sin</mi><mn>2</mn></msup><mspace width='),
        (r"$\ln(x)$", '<mi>ln</mi><mo stretchy="false">('),
        ("$$\\lim_{t} t$$", "<munder><mo>lim</mo>"),
        (r"$\lim_{t} t$", "<msub><mo>lim</mo>"),
    ],
)
def test_formulas_are_mathml(text: str, expected: str) -> None:
    assert expected in to_html(text)


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $7.",
        "From US$5 to US$7 a day",
        "$ 5 $",
        "Set `$HOME` and $PATH",
        "price \\$5\\$",
        "a $5-$10 range",
    ],
)
def test_amounts_of_money_are_not_formulas(text: str) -> None:
    fragment = to_html(text)
    assert "<math" not in fragment
    assert text_of(fragment).strip() == text.replace("`", "").replace("\\", "")


@pytest.mark.parametrize(
    "latex",
    [
        r"\frac{a}",
        r"\left( a",
        r"a^b^c",
        r"\begin{matrix} a",
        r"\newcommand{\a}{\b\b}\a",
        r"\def\a{\a\a}\a",
        "{" * 300 + "}" * 300,
        "x" * (MAX_FORMULA - 1) + "^",
    ],
)
def test_a_formula_that_cannot_be_rendered_is_shown_as_its_source(latex: str) -> None:
    fragment = to_html(f"$${latex}$$")
    assert "<math" not in fragment
    assert text_of(fragment).strip() == latex


def test_tasks_footnotes_and_definitions_are_recognised() -> None:
    text = "- [ ] open\n- [x] **done**\n\nTerm\n: Meaning\n\nSaid[^a] twice[^a].\n\n[^a]: By *whom*.\n"
    fragment = to_html(text)
    assert '<li class="task"><span class="box">☐</span> open</li>' in fragment
    assert '<li class="task done"><span class="box">☑</span> <strong>done</strong></li>' in fragment
    assert "<dl>\n<dt>Term</dt>\n<dd>Meaning</dd>\n</dl>" in fragment
    assert fragment.count('<sup class="footnote" data-note="1">1</sup>') == 2
    assert '<section class="footnotes"><ol>\n<li data-note="1"><p>By <em>whom</em>.</p>' in fragment
    assert "id=" not in fragment, "names in a page belong to the page"
