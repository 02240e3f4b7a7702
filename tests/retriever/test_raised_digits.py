"""Raised digits, divided words and inline markup: a number never absorbs a footnote's mark, and no word is cut."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import docx
import openpyxl
import pptx
import pytest
from lxml import etree
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from pptx.util import Inches
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.platypus import Paragraph, SimpleDocTemplate, Table

from mcp_servers.retriever.parsing import parse
from tests.retriever.files import pdf
from tests.retriever.office_files import open_package


def read(path: Path) -> str:
    return "\n".join(block.text for block in parse(path, path.name).blocks)


def write_word(path: Path) -> None:
    document = docx.Document()
    paragraph = document.add_paragraph("The fee is 45")
    mark = paragraph.add_run("1")
    mark.font.superscript = True
    paragraph.add_run(" EUR")
    document.save(str(path))


def write_slides(path: Path) -> None:
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[6])
    paragraph = slide.shapes.add_textbox(0, 0, Inches(4), Inches(1)).text_frame.paragraphs[0]
    paragraph.add_run().text = "The fee is 45"
    mark = paragraph.add_run()
    mark.text = "1"
    mark.font._element.set("baseline", "30000")
    paragraph.add_run().text = " EUR"
    presentation.save(str(path))


def write_sheet(path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append(["Fee", "Currency"])
    book.active["A2"] = CellRichText("The fee is 45", TextBlock(InlineFont(vertAlign="superscript"), "1"), " EUR")
    book.save(path)


def write_shared_sheet(path: Path) -> None:
    """Write the text as Excel does, in the table of shared strings."""
    write_sheet(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = "xl/worksheets/sheet1.xml"
    before, start, rest = members[name].partition(b'<c r="A2" t="inlineStr"><is>')
    text, end, after = rest.partition(b"</is></c>")
    assert start
    assert end
    members[name] = before + b'<c r="A2" t="s"><v>0</v></c>' + after
    main = b"http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    members["xl/sharedStrings.xml"] = b'<sst xmlns="%s" count="1" uniqueCount="1"><si>%s</si></sst>' % (main, text)
    types = members["[Content_Types].xml"]
    kind = b"application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    override = b'<Override PartName="/xl/sharedStrings.xml" ContentType="%s"/></Types>' % kind
    members["[Content_Types].xml"] = types.replace(b"</Types>", override)
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            archive.writestr(member, data)


def write_open_text(path: Path) -> None:
    open_package(
        path,
        "text",
        '<text:p>The fee is 45<text:span text:style-name="T1">1</text:span> EUR</text:p>',
        '<style:style style:name="T1" style:family="text"><style:text-properties style:text-position="super 58%"/>'
        "</style:style>",
    )


def write_page(path: Path) -> None:
    normal = getSampleStyleSheet()["Normal"]
    SimpleDocTemplate(str(path)).build(
        [
            Paragraph("The fee is 45<super>1</super> EUR", normal),
            Table(
                [["Fee", "Fine"], [Paragraph("1,234<super>2</super>", normal), "33"]],
                style=[("GRID", (0, 0), (-1, -1), 0.5, "black")],
            ),
        ]
    )


def write_rtf(path: Path) -> None:
    path.write_text(r"{\rtf1\ansi The fee is {\b 45}{\rtlch\af0 \super\insrsid7 1} EUR}")


WRITERS: dict[str, Callable[[Path], object]] = {
    "a.docx": write_word,
    "a.pptx": write_slides,
    "a.xlsx": write_sheet,
    "shared.xlsx": write_shared_sheet,
    "a.odt": write_open_text,
    "a.pdf": write_page,
    "a.html": lambda path: path.write_text("<p>The fee is 45<sup><a href='#n1'>1</a></sup> EUR"),
    "link.html": lambda path: path.write_text("<p>The fee is <b>45</b><a href='notes.html#n1'><span>1</span></a> EUR"),
    "a.md": lambda path: path.write_text("The fee is **45**<sup>1</sup> EUR"),
    "a.rtf": write_rtf,
    "inside.rtf": lambda path: path.write_text(r"{\rtf1\ansi The fee is 45\super\fs12 1\nosupersub  EUR}"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_footnote_mark_is_not_a_digit_of_the_number_before_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    text = read(path)
    assert "The fee is 45¹ EUR" in text
    if name == "a.pdf":
        assert "1,234² | 33" in text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("<p>the area of subsection (<a href='#s2'>2</a>) is", "subsection (2"),
        ("<p>as in [<a href='#b12'>12</a>]", "in [12"),
        ("<p>根据第<a href='#a3'>3</a>条", "第3"),
        ("<p>He wrote “yes”<a href='#n3'>3</a> twice", "“yes”³ twice"),
    ],
)
def test_a_link_with_a_number_is_a_footnote_only_behind_a_word_or_its_end(
    tmp_path: Path, source: str, text: str
) -> None:
    path = tmp_path / "page.html"
    path.write_text(source, "utf-8")
    assert text in read(path)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("<p>東<ruby>京<rp>(</rp><rt>きょう</rt><rp>)</rp></ruby>都に<b>行く</b>", "東京都に行く (きょう)"),
        ("<p>A <del>short</del> <ins>long</ins> <my-term>key</my-term>word", "A ~~short~~ long keyword"),
        ("<p>Put <button>Save</button> beside <picture><img alt=Logo></picture>", "Put Save beside Logo"),
        ("<p>So <math><mi>x</mi><mo>=</mo><mn>2</mn></math>.", "So x = 2."),
        (
            "<p>So <math><mfrac><mn>1</mn><mn>2</mn></mfrac><annotation encoding='application/x-tex'>\\frac12"
            "</annotation></math> cup",
            "So \\frac12 cup",
        ),
        ("<p>So <math alttext='1/2'><mn>1</mn><mn>2</mn></math> cup", "So 1/2 cup"),
        ("<ol start=5><li>five<li value=9>nine<li>ten</ol>", "5. five\n9. nine\n10. ten"),
        ("<ol reversed start=2><li>two<li>one</ol>", "2. two\n1. one"),
    ],
)
def test_inline_markup_does_not_split_words(tmp_path: Path, source: str, text: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(source, "utf-8")
    assert read(path) == text


def test_words_hyphenated_at_a_line_end_are_joined(tmp_path: Path) -> None:
    lines = [
        "The state-of-the-",
        "art boiler needs main-",
        "tenance, pages 10-",
        "12, and lasts long.",
    ]
    path = pdf(tmp_path / "a.pdf", [[(11, line) for line in lines]])
    assert read(path) == "The state-of-the-art boiler needs maintenance, pages 10-12, and lasts long."


HALF = "<m:f><m:num><m:r><m:t>1</m:t></m:r></m:num><m:den><m:r><m:t>2</m:t></m:r></m:den></m:f>"
POWER = "<m:sSup><m:e><m:r><m:t>10</m:t></m:r></m:e><m:sup><m:r><m:t>\u22126</m:t></m:r></m:sup></m:sSup>"
OMML = (
    "<m:oMath xmlns:m='http://schemas.openxmlformats.org/officeDocument/2006/math'>"
    f"{HALF}<m:r><m:t>+</m:t></m:r>{POWER}</m:oMath>"
)
MATHML = (
    "<math xmlns='http://www.w3.org/1998/Math/MathML'><semantics><mrow><mfrac><mn>1</mn><mn>2</mn></mfrac><mo>+</mo>"
    "<msup><mn>10</mn><mrow><mo>\u2212</mo><mn>6</mn></mrow></msup></mrow>"
    "<annotation>{1} over {2} + 10^{-6}</annotation></semantics></math>"
)


def write_formula(path: Path) -> None:
    document = docx.Document()
    document.add_paragraph("Use ")._p.append(etree.fromstring(OMML))
    document.save(str(path))


def write_formula_on_slide(path: Path) -> None:
    slides = pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[6])
    frame = slide.shapes.add_textbox(0, 0, 10**6, 10**6).text_frame
    frame.text = "Use "
    frame.paragraphs[0]._p.append(etree.fromstring(f"<a14:m xmlns:a14='http://a'>{OMML}</a14:m>"))
    slides.save(str(path))


def write_open_formula(path: Path) -> None:
    frame = "<draw:frame><draw:object xlink:href='./Formula-0'/></draw:frame>"
    open_package(path, "text", f"<text:p>Use {frame}</text:p>")
    with zipfile.ZipFile(path, "a") as package:
        package.writestr("Formula-0/content.xml", MATHML)


@pytest.mark.parametrize(
    ("name", "write"),
    [("a.docx", write_formula), ("a.pptx", write_formula_on_slide), ("a.odt", write_open_formula)],
)
def test_the_parts_of_a_formula_are_not_read_as_one_number(
    tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    write(tmp_path / name)
    assert "1/2+10⁻⁶" in read(tmp_path / name)


def test_a_fraction_keeps_the_brackets_of_a_sum(tmp_path: Path) -> None:
    def bracket(name: str) -> str:
        properties = f"<m:dPr><m:sepChr m:val='{'x' * 1_000}'/></m:dPr>"
        return f"<m:d>{properties}<m:e><m:r><m:t>{name}</m:t></m:r></m:e><m:e/></m:d>"

    total = f"{bracket('a')}<m:r><m:t>+</m:t></m:r>{bracket('b')}"
    formula = OMML.replace(HALF, HALF.replace("<m:r><m:t>1</m:t></m:r>", total))
    document = docx.Document()
    document.add_paragraph("Use ")._p.append(etree.fromstring(formula))
    document.save(str(tmp_path / "a.docx"))
    assert "((ax)+(bx))/2" in read(tmp_path / "a.docx")
