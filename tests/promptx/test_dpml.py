"""The pure parser: sections, references, rendering."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.promptx.dpml import KINDS, SECTIONS, Kind, Resources, parse, position, references, render, title
from mcp_servers.promptx.lint import lint

from .conftest import PATIENT

FILES: dict[tuple[Kind, str], str] = {
    ("thought", "think"): "<thought>\n  <exploration>\n    look\n  </exploration>\n</thought>",
    ("thought", "分析"): "<thought>分析思路</thought>",
    ("execution", "act.v2"): "<execution><process>1. go</process></execution>",
    ("knowledge", "facts"): "just text, no tag",
    ("manual", "tool"): "<manual>how to</manual>",
    ("role", "base"): "<role><knowledge>k</knowledge><personality>p @!role://me</personality></role>",
}


def look_up(kind: Kind, key: str) -> str | None:
    return FILES.get((kind, key))


def render_role(text: str, resources: Resources = "all") -> str:
    return render(parse("role", text), resources, look_up).text


def render_personality(text: str) -> str:
    return render_role(f"<role><personality>{text}</personality></role>").removeprefix("# personality\n\n")


def test_sections_are_rendered_in_one_order_and_text_outside_is_ignored() -> None:
    text = (
        "intro <role>lost <knowledge>k</knowledge> lost <personality>p</personality><principle>r</principle></role> x"
    )
    assert render_role(text) == "# personality\n\np\n\n# principle\n\nr\n\n# knowledge\n\nk"


@pytest.mark.parametrize("part", SECTIONS)
def test_one_section_can_be_requested(part: Resources) -> None:
    text = "<role><personality>p</personality><principle>r</principle><knowledge>k</knowledge></role>"
    assert render_role(text, part).startswith(f"# {part}\n\n")
    assert render_role(text, part).count("# ") == 1


def test_attributes_and_capitals_are_accepted() -> None:
    text = '<Role id="x">\n<PERSONALITY mood="calm">p</PERSONALITY><principle   >r</principle></ROLE>'
    assert render_role(text) == "# personality\n\np\n\n# principle\n\nr"


def test_children_become_headings_and_other_tags_stay() -> None:
    text = (
        "a\n    <Reasoning>\n      why <b>bold</b>\n        deeper\n    </Reasoning>\n  <constraint>no</constraint> end"
    )
    assert render_personality(text) == "a\n\n### reasoning\n\nwhy <b>bold</b>\n  deeper\n\n### constraint\n\nno\n\nend"


def test_a_reference_is_inlined_in_place_under_a_heading() -> None:
    assert render_personality("before @!thought://think after") == (
        "before \n\n## thought: think\n\n### exploration\n\nlook\n\n after"
    )


@pytest.mark.parametrize("force", ["", "!", "?"])
@pytest.mark.parametrize(
    ("reference", "heading"),
    [
        ("thought://think", "## thought: think"),
        ("Thought://think", "## thought: think"),
        ("thought://分析", "## thought: 分析"),
        ("execution://act.v2", "## execution: act.v2"),
        ("knowledge://facts", "## knowledge: facts\n\njust text, no tag"),
        ("manual://tool", "## manual: tool\n\nhow to"),
    ],
)
def test_every_form_of_reference_resolves(force: str, reference: str, heading: str) -> None:
    assert heading in render_personality(f"x @{force}{reference} y")


@pytest.mark.parametrize(
    "after", ["，然后", "。", "；x", "：", "、", "）", "】", "》", "”", "！", "？", ".", ", and", ")", "`", "然后"]
)
def test_punctuation_after_a_reference_is_not_part_of_it(after: str) -> None:
    assert render_personality(f"@!thought://think{after}").endswith(f"look\n\n{after.strip()}")


def test_an_inlined_role_shows_its_sections_and_follows_no_reference() -> None:
    assert (
        render_personality("@!role://base") == "## role: base\n\n### knowledge\n\nk\n\n### personality\n\np @!role://me"
    )


@pytest.mark.parametrize(
    "reference",
    ["@!thought://nowhere", "@?thought://nowhere", "@file:///etc/passwd", "@!knowledge://../../x", "@!thought://"],
)
def test_a_broken_reference_becomes_one_warning_line(reference: str) -> None:
    result = render(
        parse("role", f"<role><personality>a {reference} b {reference}</personality></role>"), "all", look_up
    )
    line = f"> Not available: {reference.lstrip('@!?')}"
    assert result.text == f"# personality\n\na \n\n{line}\n\n b \n\n{line}"
    assert result.missing == (line,)
    assert result.inlined == ()


def test_a_reference_of_another_program_stays_unchanged() -> None:
    assert render_personality("use @tool://filesystem and a@b.org") == "use @tool://filesystem and a@b.org"


def test_a_text_that_mentions_a_tag_is_not_cut_there() -> None:
    text = "<role><personality>Write `<role>` first.</personality><principle>p</principle></role>"
    assert parse("role", text).complete
    assert render_role(text) == "# personality\n\nWrite `<role>` first.\n\n# principle\n\np"


@pytest.mark.parametrize("text", ["<role><personality>p</personality>", "<role", "", "plain", "</role>"])
def test_half_a_role_is_not_complete(text: str) -> None:
    assert not parse("role", text).complete


def test_an_unclosed_section_reaches_to_the_next_one() -> None:
    assert (
        render_role("<role><personality>p <principle>r</principle></role>") == "# personality\n\np\n\n# principle\n\nr"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<role><personality>\n\n  intro\n  ## **Lawyer** · 律师\n</personality></role>", "Lawyer · 律师"),
        ("<role><personality>- I help. @!thought://x\nmore</personality></role>", "I help."),
        ("<role></role>", ""),
        ("", ""),
    ],
)
def test_a_title_is_the_first_heading_or_line_without_markup(text: str, expected: str) -> None:
    assert title(text) == expected


TAGS = "<role>,</role>,<Role x='1'>,<personality>,</personality>,<principle,>,<knowledge/>,<plan>,</plan>,<rule>"
MARKS = ["@!thought://think", "@thought://分析，", "@?role://base", "@file://x", "```\n", "`", "\n", "  ", "文"]
PIECES = st.lists(st.sampled_from([*TAGS.split(","), *MARKS]), max_size=40).map("".join)


@PATIENT
@given(st.one_of(PIECES, st.text()), st.sampled_from(KINDS))
def test_any_text_parses_renders_and_lints(text: str, kind: Kind) -> None:
    document = parse(kind, text)
    for section in document.sections:
        assert 0 <= section.at < section.start <= section.end <= section.after <= len(text)
    result = render(document, "all", look_up)
    assert all(FILES[key] for key in result.inlined)
    for finding in lint(kind, text, "file", look_up):
        lines = text.split("\n")
        assert 1 <= finding.line <= len(lines)
        assert 1 <= finding.column <= len(lines[finding.line - 1]) + 1
        assert finding.hint


@PATIENT
@given(PIECES)
def test_no_prefix_of_a_role_is_complete_before_its_end_tag(body: str) -> None:
    text = f"<role><personality>{body.replace('</', '')}</personality></role>"
    for length in range(len(text) - len("</role>") + 1):
        assert not parse("role", text[:length]).complete


@PATIENT
@given(st.text(alphabet="ab\n文"), st.integers(0, 50))
def test_a_position_counts_lines_and_characters_from_one(text: str, offset: int) -> None:
    offset = min(offset, len(text))
    line, column = position(text, offset)
    assert sum(len(part) + 1 for part in text.split("\n")[: line - 1]) + column - 1 == offset


@pytest.mark.parametrize("piece", ["<plan><rule>", "<plan>", "```\n`", "\n \n", "@!thought://x", "<", "<a "])
def test_a_hostile_megabyte_is_read_in_a_bounded_number_of_steps(piece: str) -> None:
    text = f"<role><personality>{piece * (200_000 // len(piece))}</personality></role>"
    render(parse("role", text), "all", look_up)
    assert len(lint("role", text, "file", look_up)) <= 100


def test_a_huge_definition_referenced_a_thousand_times_is_inlined_up_to_the_limit() -> None:
    document = parse("role", f"<role><personality>{'@!knowledge://big ' * 1000}</personality></role>")
    result = render(document, "all", lambda kind, key: "x" * 300_000)
    assert len(result.text) < 1_100_000
    assert result.missing == ("> Not available: knowledge://big",)


def test_references_are_found_with_their_place() -> None:
    [first, second] = references("é @!thought://a. @role://b-c")
    assert (first.force, first.protocol, first.target, first.start, first.end) == ("!", "thought", "a.", 2, 16)
    assert first.candidates == ("a.", "a")
    assert second.candidates == ("b-c",)
