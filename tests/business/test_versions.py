"""Versions of a document by name, and the order of their hits."""

import pytest

from agentic_rag.documents.versions import VersionFacts, newest_first, series_of
from mcp_servers.retriever.hits import Hit


def hit(document: str) -> Hit:
    return Hit(document, document, (), None, None, 1.0, 1.0, ())


@pytest.mark.parametrize(
    "names",
    [
        [
            "Travel policy 2023.pdf",
            "travel-policy_v2 (final).docx",
            "Travel Policy 2024-05-01.pdf",
            "TRAVEL POLICY (2).pdf",
        ],
        ["Preisliste Stand 3.xlsx", "Preisliste_20240501.xlsx", "preisliste Q3 2025.xlsx", "Preisliste.xlsx"],
        ["差旅制度 第二版.pdf", "差旅制度2024年5月.pdf", "差旅制度.docx"],
        ["v1.2.pdf", "V1.2.PDF"],
    ],
)
def test_versions_of_one_document_have_one_series(names: list[str]) -> None:
    assert len({series_of(name) for name in names}) == 1


def test_other_documents_have_other_series() -> None:
    names = [
        "2023.pdf",
        "2024.pdf",
        "Draft.pdf",
        "Travel policy.pdf",
        "Travel budget.pdf",
        "Model 7300 v1.pdf",
        "Model 7400.pdf",
    ]
    assert len({series_of(name) for name in names}) == len(names)
    assert series_of("a" * 100_000 + "(1)" * 1_000) == "a" * 300


def test_superseded_versions_rank_last_and_no_hit_is_lost() -> None:
    documents = {
        "old": VersionFacts("Plan 2023.md", "2023-01-01", "b"),
        "new": VersionFacts("Plan 2024.md", "2024-01-01", "a"),
        "other": VersionFacts("Budget.md", "2020-01-01", "a"),
    }
    hits = newest_first([hit("old"), hit("unknown"), hit("other"), hit("new"), hit("old")], documents)
    assert [found_hit.document_id for found_hit in hits] == ["unknown", "other", "new", "old", "old"]
    assert [ranked_hit.document_id for ranked_hit in newest_first([hit("old"), hit("other")], documents)] == [
        "old",
        "other",
    ]
