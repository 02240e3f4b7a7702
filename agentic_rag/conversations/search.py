"""Search over the titles and the contents of a user's conversations.

The store finds messages (`agentic_rag.store.message_texts`). This module matches the titles, groups the hits by
conversation, and cuts the words around a hit out of the message's text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from sqlalchemy import Connection

from agentic_rag.access.users import User
from agentic_rag.base.ids import ConversationId, MessageId
from agentic_rag.conversations.shown_messages import shown_messages
from agentic_rag.store import conversations, message_texts, sessions, turns
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.database import Database
from agentic_rag.store.message_texts import SearchTerms, TextMatch, TextScope

MAX_TITLES = 10_000
"""Number of a user's newest titles that one search reads."""
MAX_CONVERSATIONS = 200
"""Number of conversations with matching messages that one search reads, and of those with a matching title."""
BEFORE, AFTER = 40, 120
"""Characters of a message before the first hit, and from its beginning on."""

Span = tuple[int, int]
_TABLE = re.compile(r"(?:\|\s*:?-{3,}:?\s*)+\||\|")
_MARKUP = re.compile(r"[*_`#>~]+|\[\^?[\d, ]+\]")


@dataclass(frozen=True, slots=True)
class MessageExcerpt:
    """Text around a hit. ``marks`` are the first and the next character of each hit in it, in Unicode code points."""

    text: str
    marks: Sequence[Span]


@dataclass(frozen=True, slots=True)
class MessageHit:
    """The newest message of a conversation that matches."""

    id: MessageId
    role: Literal["user", "assistant"]
    excerpt: MessageExcerpt


@dataclass(frozen=True, slots=True)
class ConversationHit:
    """A conversation whose title or messages match. ``count`` is the number of its messages that match."""

    conversation: ConversationRecord
    title_marks: Sequence[Span]
    message: MessageHit | None
    count: int


@dataclass(frozen=True, slots=True)
class ConversationHits:
    """The conversations found, newest message first. ``more``: there are others that were not read."""

    items: Sequence[ConversationHit]
    more: bool


class ConversationSearch:
    """Searches in the conversations of all users, each in the user's own ones."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def search(self, user: User, query: str, domain_id: str | None, limit: int) -> ConversationHits:
        """Return the user's conversations in which all words of a query occur: in the title, or in one message.

        A word may be the beginning of a longer one. Part of a Chinese or Japanese text is found as written.
        """
        terms = SearchTerms.of(query)
        if not terms.phrases:
            return ConversationHits((), more=False)
        domain_ids = None if user.operator else user.domains

        def read(conn: Connection) -> ConversationHits:
            matches = message_texts.search(conn, TextScope(user.id, domain_id), terms)
            by_conversation: dict[ConversationId, list[TextMatch]] = {}
            for match in matches:
                by_conversation.setdefault(match.conversation_id, []).append(match)
            titles = conversations.titles_of(conn, user.id, domain_id, MAX_TITLES)
            # The first test is a cheap one for each of thousands of titles. The second one finds the words.
            titled = (ident for ident, title in titles.items() if terms.may_be_in(title) and terms.spans_in(title))
            ids = {*islice(by_conversation, MAX_CONVERSATIONS), *islice(titled, MAX_CONVERSATIONS)}
            # One more than asked for shows whether there are others.
            records = conversations.newest_of(conn, ids, user.id, domain_ids, limit + 1)
            items = [_hit(conn, record, by_conversation.get(record.id, ()), terms) for record in records[:limit]]
            return ConversationHits(items, len(records) > limit or len(matches) == message_texts.MAX_MATCHES)

        return await self._db.read(read)


def _hit(
    conn: Connection,
    conversation: ConversationRecord,
    matches: Sequence[TextMatch],
    terms: SearchTerms,
) -> ConversationHit:
    # A match may have no message any more that can be shown; then the next one is.
    messages = (_message_hit(conn, conversation, match, terms) for match in matches[:3])
    message = next((candidate for candidate in messages if candidate is not None), None)
    return ConversationHit(conversation, terms.spans_in(conversation.title), message, len(matches))


def _message_hit(
    conn: Connection, conversation: ConversationRecord, match: TextMatch, terms: SearchTerms
) -> MessageHit | None:
    rows = sessions.of_message(conn, match.session_id, match.message_id)
    turn = turns.get(conn, rows[0].turn_id) if rows else None
    if turn is None:
        return None
    for message in shown_messages(conversation.id, rows, {turn.id: turn}):
        if message.id == match.message_id:
            return MessageHit(message.id, message.role, excerpt_of(message.content, terms))
    return None


def excerpt_of(text: str, terms: SearchTerms) -> MessageExcerpt:
    """Return the text around the first hit, or the beginning of a text without one, on one line without Markdown."""
    # The index holds no more of a message, so no hit is behind this.
    text = text[: message_texts.MAX_CHARACTERS]
    spans = terms.spans_in(text)
    start = 0 if not spans else spans[0][0]
    begin, end = _word_start(text, start - BEFORE), start + AFTER
    pieces, marks, at = ["…" if begin else ""], [], begin
    length = len(pieces[0])
    for first, last in [*(span for span in spans if span[1] <= end), (end, end)]:
        for piece, is_mark in ((text[at:first], False), (text[first:last], True)):
            # Marks count in the text that is shown, which is shorter than the original where markup is removed.
            plain = _plain(piece, starts=length <= 1)
            if is_mark and plain:
                marks.append((length, length + len(plain)))
            pieces.append(plain)
            length += len(plain)
        at = last
    pieces.append("…" if end < len(text) else "")
    return MessageExcerpt("".join(pieces).rstrip(), marks)


def _word_start(text: str, at: int) -> int:
    """Return the beginning of the first word after a position, at most 20 characters further."""
    if at <= 0:
        return 0
    space = re.search(r"\s", text[at : at + 20])
    return at if space is None else at + space.end()


def _plain(piece: str, *, starts: bool) -> str:
    plain = re.sub(r"\s+", " ", _MARKUP.sub("", _TABLE.sub(" ", piece)))
    return plain.lstrip() if starts else plain
