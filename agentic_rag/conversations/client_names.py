"""Look up conversations and turns by ids that clients of other protocols chose.

A client's id is valid for its own user in one domain: another user may use the same id for another conversation and
learns nothing of the first. Ids of this server are accepted, too.
"""

from agentic_rag.access.users import User
from agentic_rag.base.errors import InvalidInput, NotFound
from agentic_rag.base.ids import ConversationId
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.store import conversations, turns
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.database import Database
from agentic_rag.store.turns import TurnRecord

MAX_NAME = 200
"""Maximum characters of an id that a client chooses."""
_OURS = "conv_"


class ClientNames:
    """The ids that all users' clients chose for their conversations and turns."""

    def __init__(self, database: Database, conversations: Conversations) -> None:
        self._db = database
        self._conversations = conversations

    async def find(self, user: User, domain_id: str, name: str) -> ConversationRecord | None:
        """Return the conversation with this client id, or None if there is none yet.

        Raises:
            NotFound: the domain does not exist for this user, or the id is a server id of no conversation of this user
                in this domain.
            InvalidInput: the id is not valid.
        """
        check_name("id", name)
        if not user.sees(domain_id):
            raise NotFound("domain", domain_id, hidden=True)
        if not name.startswith(_OURS):
            return await self._db.read(lambda conn: conversations.by_client_name(conn, user.id, domain_id, name))
        conversation = await self._conversations.get(user, ConversationId(name))
        if conversation.domain_id != domain_id:
            raise NotFound("conversation", name)
        return conversation

    async def find_or_begin(self, user: User, domain_id: str, name: str) -> ConversationRecord:
        """Return the conversation with this client id, or create it. Raises as `find`."""
        conversation = await self.find(user, domain_id, name)
        return conversation or await self._conversations.create(user, domain_id, client_name=name)

    async def turn(self, user: User, domain_id: str, client_message_id: str) -> TurnRecord:
        """Return the newest turn that a client message started in any of a user's conversations in a domain.

        Raises:
            NotFound: there is no such turn.
        """
        check_name("runId", client_message_id)
        turn = await self._db.read(
            lambda conn: conversations.turn_of_client_message(conn, user.id, domain_id, client_message_id)
        )
        if turn is None:
            raise NotFound("turn", client_message_id)
        return turn

    async def turn_in(self, conversation: ConversationRecord, client_message_id: str) -> TurnRecord | None:
        """Return the turn that a client message started in a conversation, or None."""
        return await self._db.read(
            lambda conn: turns.by_client_message(conn, conversation.session_id, client_message_id)
        )


def check_name(field: str, name: str) -> None:
    """Check an id that a client chose.

    Raises:
        InvalidInput: the id is empty, too long, or contains a NUL.
    """
    if not 0 < len(name) <= MAX_NAME or "\0" in name:
        raise InvalidInput(field, f"1 to {MAX_NAME} characters are expected, none of them NUL.")
