"""The full-text index over what people asked and what they were answered.

A row holds the words of one question or answer in a form that both databases index alike: folded
(`mcp_servers.folding`), without accents, separated by spaces, each character of a script without spaces on its own. A
search for part of a Chinese word is therefore a search for characters that follow each other, however few they are.

On SQLite, triggers copy each row into the FTS5 table ``message_search`` and out of it, so that a deletion and its index
entries are one transaction. On PostgreSQL, a GIN index over the words finds candidates. `migrations/script.py.mako`
creates both. The first words of a row name its owner and its domain, so that the index itself leaves out the
messages of others; callers still compare the owner of each conversation that they show.
"""

import hashlib
import re
import time
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.base.ids import ConversationId, MessageId, SessionId
from agentic_rag.base.messages import Role
from agentic_rag.store.columns import Indexed, Key, RowNumber
from agentic_rag.store.record import Record
from mcp_servers.folding import fold

INDEX = "message_search"
"""The FTS5 table of SQLite; it has three more tables with this prefix."""
MAX_CHARACTERS = 100_000
"""Characters of one message that are indexed; the rest of a longer one is not found."""
MAX_TERMS = 16
"""Maximum number of terms of a search; further ones are ignored."""
MAX_MATCHES = 2_000
"""Number of the newest matches that one search reads."""

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff"
_UNSPACED += "\uf900-\ufaff\U00020000-\U0003ffff"
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese: scripts that write no spaces between words."""
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_LONGEST_WORD = 100


class MessageTextRecord(Record, table=True):
    """The words of one question or answer. ``id`` grows with time."""

    __tablename__ = "message_texts"
    part_of = "session"

    id: Key[RowNumber]
    session_id: Indexed[SessionId]
    conversation_id: ConversationId
    message_id: MessageId
    role: Role
    words: str


TEXTS = MessageTextRecord.__table__
_texts = TEXTS.c


class IndexedWord(NamedTuple):
    """A word in its indexed form, and its place in the text."""

    text: str
    start: int
    end: int


def words_of(text: str) -> list[IndexedWord]:
    """Return the words of a text in the form in which they are indexed, with their places."""
    folded = fold(text)
    matches = ((_index_form(match[0]), match.span()) for match in _WORD.finditer(folded.text))
    return [IndexedWord(word, *folded.source_span(*span)) for word, span in matches if word]


def _index_form(word: str) -> str:
    word = word[:_LONGEST_WORD]
    is_ideograph_or_kana = len(word) == 1 and word >= "\u2e80"
    return word if is_ideograph_or_kana else _without_accents(word)


def _without_accents(text: str) -> str:
    if text.isascii():
        return text
    return "".join(
        character for character in unicodedata.normalize("NFD", text) if unicodedata.category(character) != "Mn"
    )


@dataclass(frozen=True, slots=True)
class SearchTerms:
    """What a search looks for: phrases, all of which must be in a message. The last word of each may be a beginning."""

    phrases: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, query: str) -> "SearchTerms":
        """Return the terms of a query: one for each part between spaces. A query without a word finds nothing."""
        parts = (tuple(word.text for word in words_of(part)) for part in query.split())
        return cls(tuple(dict.fromkeys(part for part in parts if part))[:MAX_TERMS])

    def may_be_in(self, text: str) -> bool:
        """Return whether `spans_in` may find places in a text. Fast, for thousands of titles."""
        folded = _without_accents(fold(text).text)
        return all(_without_accents(word) in folded for phrase in self.phrases for word in phrase)

    def spans_in(self, text: str) -> list[tuple[int, int]]:
        """Return the places of a text that match a term, in order, without overlaps; none unless all terms match."""
        words = words_of(text)
        places: dict[str, list[int]] = {}
        for number, word in enumerate(words):
            places.setdefault(word.text, []).append(number)
        spans: set[tuple[int, int]] = set()
        for phrase in self.phrases:
            if len(phrase) > 1:
                starts: Iterable[int] = places.get(phrase[0], ())
            else:
                starts = [at for word, numbers in places.items() if word.startswith(phrase[0]) for at in numbers]
            matching_places = [at for at in starts if _matches(words, at, phrase)]
            if not matching_places:
                return []
            spans.update((words[at].start, words[at + len(phrase) - 1].end) for at in matching_places)
        return _join_spans(sorted(spans))


def _matches(words: list[IndexedWord], at: int, phrase: tuple[str, ...]) -> bool:
    there = [word.text for word in words[at : at + len(phrase)]]
    return len(there) == len(phrase) and there[:-1] == [*phrase[:-1]] and there[-1].startswith(phrase[-1])


def _join_spans(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


@dataclass(frozen=True, slots=True)
class TextScope:
    """The owner and the domain of a message, as the first words of its row."""

    owner_id: str
    domain_id: str | None = None
    """None in a search: any domain."""

    @property
    def words(self) -> tuple[str, ...]:
        domain = () if self.domain_id is None else (f"§d{_digest(self.domain_id)}",)
        return f"§o{_digest(self.owner_id)}", *domain


def _digest(ident: str) -> str:
    return hashlib.blake2b(ident.encode(), digest_size=8).hexdigest()


class _Numbers:
    """Row numbers of this process: microseconds since 1970 times 1024, always growing."""

    def __init__(self) -> None:
        # The low ten bits keep processes apart that index a message in the same microsecond.
        self._last = time.time_ns() // 1_000 << 10 | time.perf_counter_ns() & 1023

    def take(self) -> int:
        self._last = max(self._last + 1, time.time_ns() // 1_000 << 10 | self._last & 1023)
        return self._last


_numbers = _Numbers()


def add(
    conn: Connection,
    scope: TextScope,
    session_id: SessionId,
    conversation_id: ConversationId,
    message_id: MessageId,
    role: Role,
    text: str,
) -> None:
    """Index a question or an answer. A message without a word has no row."""
    words = [word for token in _WORD.findall(fold(text[:MAX_CHARACTERS]).text) if (word := _index_form(token))]
    if not words:
        return
    MessageTextRecord(
        id=RowNumber(_numbers.take()),
        session_id=session_id,
        conversation_id=conversation_id,
        message_id=message_id,
        role=role,
        words=" ".join([*scope.words, *words]),
    ).insert(conn)


class TextMatch(NamedTuple):
    """A message that matches a search."""

    conversation_id: ConversationId
    session_id: SessionId
    message_id: MessageId
    role: Role


_FOUND = (_texts.conversation_id, _texts.session_id, _texts.message_id, _texts.role)
_BY_FTS5 = sa.text(
    "SELECT t.conversation_id, t.session_id, t.message_id, t.role"
    f" FROM {INDEX} s JOIN message_texts t ON t.id = s.rowid"
    f" WHERE {INDEX} MATCH :query ORDER BY s.rowid DESC LIMIT :at_most"
)

_ALLOW_SCANS = sa.text("SELECT set_config('enable_seqscan', :allowed, true)")
"""Whether PostgreSQL may read whole tables, until the end of the transaction."""


def search(conn: Connection, scope: TextScope, terms: SearchTerms, at_most: int = MAX_MATCHES) -> list[TextMatch]:
    """Return the newest messages of an owner that match all terms, newest first; at most ``at_most``."""
    if not terms.phrases:
        return []
    if conn.dialect.name == "sqlite":
        query = " AND ".join([*(f'"{word}"' for word in scope.words), *(f'"{" ".join(p)}" *' for p in terms.phrases)])
        return [TextMatch(*row) for row in conn.execute(_BY_FTS5, {"query": query, "at_most": at_most})]
    exact = [*scope.words, *(word for phrase in terms.phrases for word in phrase[:-1])]
    lexemes = [*(f"'{word}'" for word in exact), *(f"'{phrase[-1]}':*" for phrase in terms.phrases)]
    indexed = sa.func.array_to_tsvector(sa.func.string_to_array(_texts.words, sa.literal_column("' '")))
    where: list[sa.ColumnElement[bool]] = [
        indexed.bool_op("@@")(sa.cast(" & ".join(dict.fromkeys(lexemes)), _TsQuery()))
    ]
    # The index ignores the order of words.
    where += [_texts.words.contains(f" {' '.join(p)}", autoescape=True) for p in terms.phrases if len(p) > 1]
    # PostgreSQL underestimates the work of reading a row's words. It would therefore often read all rows, newest first,
    # instead of asking the index: seconds for 100 000 messages. The subquery and the setting prevent that.
    matches = sa.select(_texts.id, *_FOUND).where(*where).cte("matches").prefix_with("MATERIALIZED")
    newest = sa.select(*(matches.c[column.name] for column in _FOUND)).order_by(matches.c.id.desc()).limit(at_most)
    conn.execute(_ALLOW_SCANS, {"allowed": "off"})
    texts = [TextMatch(*row) for row in conn.execute(newest)]
    conn.execute(_ALLOW_SCANS, {"allowed": "on"})
    return texts


class _TsQuery(sa.types.UserDefinedType[str]):
    """PostgreSQL's type of a full-text query."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "tsquery"


def purge(conn: Connection) -> None:
    """Remove the words of deleted rows from SQLite's index file, where FTS5 otherwise keeps them until a merge."""
    if conn.dialect.name == "sqlite":
        conn.execute(sa.text(f"INSERT INTO {INDEX}({INDEX}) VALUES ('optimize')"))
