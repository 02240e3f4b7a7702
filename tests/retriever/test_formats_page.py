"""docs/documents.md lists the formats that the server reads."""

from tests.formats_page import PAGE, make_page


def test_the_docs_list_the_formats_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == make_page(page), "run scripts/write_formats"
