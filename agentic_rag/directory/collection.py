"""A domain's collection: its name in the index, and facts about its searchable documents.

Pure. Knows no index and no database.
"""

from dataclasses import dataclass

from agentic_rag.directory.languages import NAMES as LANGUAGE_NAMES


@dataclass(frozen=True, slots=True)
class CollectionFacts:
    """The number and languages of a domain's searchable documents. ``languages``: sorted codes."""

    count: int = 0
    languages: tuple[str, ...] = ()


def collection_of(domain_id: str) -> str:
    """Return the name of a domain's collection in the index."""
    return f"domain_{domain_id}"


def domain_of(collection: str) -> str:
    """Return the id of the domain that owns a collection. This is the inverse of `collection_of`."""
    return collection.removeprefix("domain_")


def collection_note(facts: CollectionFacts, expertise: str) -> str:
    """Return the search tool's note about the collection: size class, languages and field, but no file name.

    The note gives a size class, so that a new document does not change the request's cached prefix.
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
