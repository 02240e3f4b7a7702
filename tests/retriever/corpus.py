"""Small documents that several tests search."""

from mcp_servers.retriever.chunking import Chunk, chunk_document
from mcp_servers.retriever.document import Block, ParsedDocument

HANDBOOK = ParsedDocument(
    (
        Block("heading", "Handbook", 1),
        Block("heading", "Annual leave", 2),
        Block("prose", "Every employee has twenty-five days of paid leave. Unused days expire on 31 March."),
        Block("heading", "Sick leave", 2),
        Block("prose", "A medical certificate is needed from the third day of illness."),
    )
)
RULES = ParsedDocument(
    (
        Block("heading", "员工手册", 1),
        Block("heading", "年假规定", 2),
        Block("prose", "员工每年享有十五天带薪年假。未使用的年假于次年三月底失效。"),
        Block("heading", "报销", 2),
        Block("prose", "差旅报销须在三十天内提交发票。"),
    )
)


def handbook() -> list[Chunk]:
    return chunk_document(HANDBOOK, "doc-en", "handbook.md")


def rules() -> list[Chunk]:
    return chunk_document(RULES, "doc-zh", "规定.md")


def long_section(sentences: int) -> list[Chunk]:
    """One section of numbered sentences that fills several chunks."""
    text = " ".join(f"Sentence number {n} speaks about pumps, valves and their pressure." for n in range(sentences))
    blocks = (Block("heading", "Pumps", 1), Block("prose", text))
    return chunk_document(ParsedDocument(blocks), "doc-long", "pumps.md")
