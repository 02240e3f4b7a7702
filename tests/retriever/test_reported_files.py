"""Files from bug reports of other products, and ordinary documents: all of their text is in the output."""

from pathlib import Path

import pytest

from mcp_servers.retriever.document import Block, ParsedDocument
from mcp_servers.retriever.parsing import parse

FIELD = Path(__file__).parents[1] / "fixtures" / "field"


def read(name: str) -> ParsedDocument:
    return parse(FIELD / name, name)


CASES: tuple[tuple[str, tuple[Block, ...]], ...] = (
    (
        "legal_numbers.docx",
        (
            Block(
                "list",
                "Article 1 Term\n  1.1 This lease runs for two years.\n  1.2 It ends without notice.\n"
                "Article 2 Rent\n  2.1 The rent is due on the third working day.\n"
                "  2.2 Arrears bear interest of five per cent.",
            ),
            Block("prose", "Article 2.2 does not apply to public bodies."),
        ),
    ),
    (
        "header.docx",
        (
            Block("prose", "Policy HR-017, valid from 1 March 2031"),
            Block("prose", "Owner: Payroll"),
            Block("prose", "Leave is asked for in writing."),
        ),
    ),
    ("strict.docx", (Block("prose", "The gate code is 4471."),)),
    (
        "formula_nocache.xlsx",
        (
            Block("heading", "Budget", 1),
            Block(
                "table",
                "Item | Units | Price | Total\nPump | 3 | 40 | =B2*C2\n"
                "Valve | 2 | 15 | =B3*C3\nSum |  |  | =SUM(D2:D3)",
                cells="Budget!A2:D4",
            ),
        ),
    ),
    (
        "codes.xlsx",
        (Block("heading", "Codes", 1), Block("table", "Branch | Postcode\nOslo | 00070", cells="Codes!A2:B2")),
    ),
    (
        "merged.xlsx",
        (
            Block("heading", "Shifts", 1),
            Block(
                "table",
                "Site | Shift | Guard\nNorth gate | early | Ana\nNorth gate | late | Bo\nNorth gate | night | Cy\n"
                "South gate | early | Di\nSouth gate | late | Ed\nSouth gate | night | Flo",
                cells="Shifts!A2:C7",
            ),
        ),
    ),
    (
        "slides.pptx",
        (
            Block("heading", "Fire drill", 1, 1),
            Block("list", "Pull the green lever", page=1),
            Block("list", "First: leave the lift alone", page=1),
            Block("list", "Second: walk to the yard", page=1),
            Block("prose", "Say that the assembly point is the oak.", page=1),
            Block("heading", "Old draft", 1, 2),
        ),
    ),
    ("page.html", (Block("heading", "Travel expenses 2031", 1), Block("prose", "Grade B gets 40 a day."))),
    (
        "form.md",
        (
            Block("heading", "Parking", 1),
            Block("prose", "Ask for a place with the form (https://forms.example.org/parking-3)."),
        ),
    ),
    ("boiler.md", (Block("code", "title: Boiler guide\ndate: 2031-02-03"), Block("prose", "Open the red valve."))),
    ("prices.tsv", (Block("table", "Preis, EUR | Artikel\n2,50 | Pumpe\n7,90 | Ventil", cells="A2:B3"),)),
    ("breaks.txt", (Block("prose", "Line one\nLine two"),)),
)


@pytest.mark.parametrize(("name", "blocks"), CASES, ids=[case[0] for case in CASES])
def test_a_file_that_other_products_misread_is_read_correctly(name: str, blocks: tuple[Block, ...]) -> None:
    assert read(name).blocks == blocks


def test_skipped_and_added_parts_of_real_files_have_notes() -> None:
    assert read("boiler.md").date == "2031-02-03"
    assert read("slides.pptx").notes == ("hidden slides were read too: 2",)
    (note,) = read("formula_nocache.xlsx").notes
    assert note.startswith("formulas without a value: 3;")


HEADINGS: dict[str, list[tuple[int, str]]] = {
    "o03_policy.docx": [(1, "Travel policy"), (2, "Scope"), (3, "Limits"), (2, "Approval")],
    "o04_prices.xlsx": [(1, "Prices"), (2, "Price list 2031"), (1, "Contacts")],
    "o05_deck.pptx": [(1, "Step 1"), (1, "Step 2"), (1, "Step 3"), (1, "Figures")],
    "o06_article.html": [(1, "Boiler care"), (2, "Steps")],
    "o07_gbk.csv": [],
    "o08_book.epub": [(1, "Handbook of locks"), (2, "Chapter one"), (3, "Care"), (2, "Chapter two")],
    "o09_mail.eml": [
        (1, "关于锅炉检修的通知 Boiler"),
        (1, "Attachment: 名单.csv"),
        (1, "Attachment: policy.docx"),
        (2, "Travel policy"),
        (3, "Scope"),
        (4, "Limits"),
        (3, "Approval"),
    ],
    "o10_lease.odt": [(1, "Lease"), (2, "Duties")],
    "o11_memo.rtf": [],
}
TEXTS: dict[str, tuple[str, ...]] = {
    "o03_policy.docx": (
        "This policy applies to all staff of the works.",
        "Contractors are named in annex B.",
        "- Train tickets up to 300 EUR\n- Hotel up to 120 EUR",
        "Grade | Flight | Hotel\nA | Business | 200\nB | Economy | see below City / EUR; Oslo / 180",
        "The head of unit approves each journey before booking.",
    ),
    "o04_prices.xlsx": (
        "Article | Name | Price | Discount | Valid from",
        "A00001 | Pump type 1 | 1.25 € | 5% | 02.01.2031",
        "A00750 | Pump type 750 | 937.50 € | 10% | 23.01.2031",
        "A01500 | Pump type 1500 | 1,875.00 € | 0% | 17.01.2031",
        "Town | Phone\nOslo | 0047 22 11\nBergen | 0047 55 10",
    ),
    "o05_deck.pptx": (
        "Open valve 2\nWait 2 minutes",
        "Tell the crew that valve 3 is hot.",
        "Year | Tons | Note\n2030 | 410 |",
    ),
    "o06_article.html": (
        "Drain the boiler every autumn. See the manual (https://works.example.org/boiler).",
        "1. Close the valve\n  - turn it right\n2. Wait ten minutes",
        "Part | Interval | Who\nFilter | monthly | Ada\nFilter | yearly | Bo\nSeal |  | Cy",
        "pump --start\npump --stop",
        "Imprint 2031",
    ),
    "o07_gbk.csv": (
        "姓名 | 部门 | 备注\n王小明 | 财务部 | 审批人, 二级\n李雷 | 人事部 |\n韩梅梅 | 信息技术部 | 值班电话4471",
    ),
    "o08_book.epub": (
        "The first lock is red.",
        "Never force it.",
        "The second lock is oiled in May.",
        "Lock | Key\nEast | K7",
    ),
    "o09_mail.eml": (
        "- From: Ada Lind <ada@works.example>\n- To: crew@works.example",
        "the boiler is closed on Friday.",
        "> earlier words",
        "姓名 | 班\n王 | 夜",
        "Hotel up to 120 EUR",
    ),
    "o10_lease.odt": (
        "The rent is  900 EUR a month.",
        "Without heating.",
        "- Sweep the stairs\n- Lock the gate",
        "Room | Area | Use\nR1 |  | store",
    ),
    "o11_memo.rtf": (
        "Memo on keys",
        "The key of room 十二 hangs at the gate’s post. Naïve? No.",
        "Room | Key | Who\nR1 |  | Ada",
        "Return it by the form (https://keys.example.org).",
    ),
}
DATES = {
    "o06_article.html": "2031-03-04",
    "o08_book.epub": "2030-05-06",
    "o09_mail.eml": "2031-03-04",
}


@pytest.mark.parametrize("name", HEADINGS)
def test_an_ordinary_document_is_read_completely(name: str) -> None:
    parsed = read(name)
    assert [(block.level, block.text) for block in parsed.blocks if block.kind == "heading"] == HEADINGS[name]
    assert [text for text in TEXTS[name] if text not in parsed.text] == []
    assert name not in DATES or parsed.date == DATES[name]


def test_every_row_of_a_price_list_of_1500_rows_appears_once() -> None:
    lines = [line for block in read("o04_prices.xlsx").blocks for line in block.text.split("\n")]
    assert [line.split(" | ")[0] for line in lines if line.startswith("A0")] == [f"A{n:05d}" for n in range(1, 1501)]
