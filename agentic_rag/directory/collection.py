"""A domain's collection: its name in the index, and what its searchable documents are like.

Pure. Knows no index and no database.
"""

from dataclasses import dataclass

from agentic_rag.directory.languages import NAMES as LANGUAGE_NAMES


@dataclass(frozen=True, slots=True)
class CollectionFacts:
    """What a domain's searchable documents are like. ``languages``: sorted codes."""

    count: int = 0
    languages: tuple[str, ...] = ()


def collection_of(domain_id: str) -> str:
    """Return the name of the domain's set of chunks."""
    return f"domain_{domain_id}"


def domain_of(collection: str) -> str:
    """Return the id of the domain whose chunks a collection holds; reverses `collection_of`."""
    return collection.removeprefix("domain_")


def collection_note(facts: CollectionFacts, expertise: str) -> str:
    """Return what the search tool says of the collection: size class, languages, field. Never a file name.

    The size is a class, so that one more document does not change the request's prefix.
    """
    if not facts.count:
        return ""
    limit = 10
    while facts.count >= limit:
        limit *= 10
    size = "1 document" if facts.count == 1 else f"fewer than {limit} documents"
    languages = ", ".join(LANGUAGE_NAMES.get(language, language) for language in facts.languages)
    note = f"The collection holds {size}" + (f" in {languages}." if languages else ".")
    return f"{note} Field: {expertise}" if expertise else note
