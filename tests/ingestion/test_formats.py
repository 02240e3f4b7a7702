"""A file of every format is uploaded and found with its place; every bad file fails alone with its own reason."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.retriever import files
from tests.server.rig import Json, Rig

GOOD = b"# Holidays\n\nEveryone has twenty-five days of paid leave a year.\n"


def make_bytes(make: Callable[[Path], Path], folder: Path, name: str) -> bytes:
    return make(folder / f"source-{name}").read_bytes()


CASES: tuple[tuple[str, Callable[[Path], bytes], str, str, Json], ...] = (
    (
        "manual.pdf",
        lambda folder: make_bytes(
            lambda path: files.pdf(path, [[(11, "Nothing here.")], [(11, "Pumps hold twelve bar.")]]), folder, "m.pdf"
        ),
        "application/pdf",
        "pumps bar",
        {"page": 2},
    ),
    (
        "policy.docx",
        lambda f: make_bytes(files.word, f, "p.docx"),
        "wordprocessingml",
        "twenty-five days",
        {"page": None},
    ),
    ("plan.pptx", lambda f: make_bytes(files.slides, f, "p.pptx"), "presentationml", "risks none known", {"page": 2}),
    ("rates.xlsx", lambda f: make_bytes(files.workbook, f, "r.xlsx"), "spreadsheetml", "city number 3", {"page": None}),
    ("rates.csv", lambda f: b"city,rate\nBonn,3\nKiel,4\n", "text/csv", "Kiel rate", {"page": None}),
    ("page.html", lambda f: b"<h1>Pumps</h1><p>They hold twelve bar.</p>", "text/html", "twelve bar", {"page": None}),
    ("brisa-300-user-guide.md", lambda f: GOOD, "text/markdown", "paid leave", {"page": None}),
    ("说明.txt", lambda f: "水泵的额定压力是十二巴。".encode("gb18030"), "text/plain", "水泵压力", {"page": None}),
    ("umlaut.txt", lambda f: "Größe der Öffnung: drei Ellen".encode("cp1252"), "text/plain", "größe", {"page": None}),
)


async def test_a_file_of_each_format_is_found_with_its_place(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        for name, content, media, query, place in CASES:
            domain = await rig.domain()
            document = await rig.upload(domain, name, content(tmp_path))
            assert document["status"] == "indexed", document
            assert media in document["mediaType"]
            answer = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": query})
            hit = answer["hits"][0]
            assert (hit["documentId"], hit["documentName"]) == (document["id"], name)
            assert hit["page"] == place["page"], name
            if name.endswith(("xlsx", "csv")):
                assert hit["cells"], name


def thousand_pages(folder: Path) -> bytes:
    return make_bytes(lambda path: files.pdf(path, [[(11, f"Page {n}.")] for n in range(1001)]), folder, "long.pdf")


BAD: tuple[tuple[str, Callable[[Path], bytes], str], ...] = (
    ("empty.md", lambda f: b"", "DOCUMENT_EMPTY"),
    ("blank.txt", lambda f: b" \n\n ", "DOCUMENT_EMPTY"),
    (
        "locked.pdf",
        lambda f: make_bytes(lambda p: files.pdf(p, [[(11, "x")]], "secret"), f, "l.pdf"),
        "DOCUMENT_ENCRYPTED",
    ),
    ("scan.pdf", lambda f: make_bytes(lambda p: files.pdf(p, [[], []]), f, "s.pdf"), "DOCUMENT_SCANNED"),
    ("long.pdf", thousand_pages, "DOCUMENT_TOO_LARGE"),
    ("picture.pdf", lambda f: b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "DOCUMENT_BROKEN"),
    ("wrong.docx", lambda f: GOOD, "DOCUMENT_BROKEN"),
    ("binary.txt", lambda f: bytes(range(32)) * 200, "DOCUMENT_BROKEN"),
    (
        "bomb.docx",
        lambda f: files.package(f / "b.docx", {"word/document.xml": files.zeros(500)}).read_bytes(),
        "DOCUMENT_TOO_LARGE",
    ),
)


async def test_a_bad_file_fails_with_its_reason_and_the_next_is_ingested(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        for name, content, code in BAD:
            domain = await rig.domain()
            bad_document = await rig.upload(domain, name, content(tmp_path))
            assert (bad_document["status"], bad_document.get("error", {}).get("code")) == ("failed", code), name
            assert bad_document["error"]["message"]
            assert (await rig.upload(domain, "good.md", GOOD))["status"] == "indexed"
            answer = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "paid leave"})
            assert [hit["documentName"] for hit in answer["hits"]] == ["good.md"], name


@pytest.mark.attack(kind="files")
async def test_an_xml_bomb_is_not_expanded(tmp_path: Path) -> None:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "lol"}">' for n in range(10))
    bomb = f'<?xml version="1.0"?><!DOCTYPE d [{entities}]><d>&e9;</d>'.encode()
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        content = files.package(tmp_path / "x.xlsx", {"xl/workbook.xml": bomb, "[Content_Types].xml": bomb})
        document = await rig.upload(domain, "bomb.xlsx", content.read_bytes())
        assert document["status"] == "failed"
        assert document["error"]["code"] in ("DOCUMENT_BROKEN", "DOCUMENT_TOO_LARGE")
        assert (await rig.upload(domain, "good.md", GOOD))["status"] == "indexed"
