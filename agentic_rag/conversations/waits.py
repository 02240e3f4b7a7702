"""List the waits that concern a user, and store answers to them.

Decides who may see and answer a wait. Only the first answer counts. An answer, the turn's wake-up and the rule that an
approval adds to the domain are one transaction, so a crash loses none of them. `SignInWaits` ends the waits for a
sign-in. Knows no socket.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import User
from agentic_rag.base.errors import Forbidden, NotFound, WaitAnswered
from agentic_rag.base.events import Answerer, WaitAction, WaitKind
from agentic_rag.base.ids import ConversationId, TurnId, WaitId
from agentic_rag.base.json_form import Json
from agentic_rag.conversations.answers import read_answer
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.conversations.hidden_passages import hide_in_wait, names_documents
from agentic_rag.domains.domains import Domains
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.runtime.services import Answers
from agentic_rag.store import conversations, turns, waits
from agentic_rag.store.audit import Entry
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.waits import STATE_OF, WaitRecord, WaitState
from agentic_rag.tools.base import SIGN_IN


@dataclass(frozen=True, slots=True)
class WaitPage:
    """One page of a list. ``total`` counts the matches on all pages."""

    items: Sequence[WaitRecord]
    total: int


class ChangeGuard(Protocol):
    """Tries a change of a domain's settings before the change is made, if the domain asks for that."""

    async def guard_settings(self, domain_id: str, settings: Json) -> object:
        """Raise `ChangeHeld` or `ChangeOnTrial` if the change must not be made now."""
        ...


class Waits:
    """The waits of all turns.

    ``conversations`` knows which documents a user may no longer see. ``domains`` stores the rules that approvals add;
    ``gate`` tries them before.
    """

    def __init__(
        self, database: Database, conversations: Conversations, runtime: Runtime, domains: Domains, gate: ChangeGuard
    ) -> None:
        self._db = database
        self._conversations = conversations
        self._runtime = runtime
        self._domains = domains
        self._gate = gate

    async def list_page(
        self,
        user: User,
        state: WaitState | None,
        conversation_id: ConversationId | None = None,
        *,
        page: int = 1,
        page_size: int = 50,
    ) -> WaitPage:
        """Return the waits of the user's conversations and those for admins of the user's domains, newest first."""
        domains, admin_of = (None, None) if user.operator else (user.domains, user.administered)
        items, total = await self._db.read(
            lambda conn: waits.list_page(
                conn,
                user.id,
                domains,
                admin_of,
                state=state,
                conversation_id=conversation_id,
                limit=page_size,
                offset=(page - 1) * page_size,
            )
        )
        return WaitPage([await self.without_hidden(user, wait) for wait in items], total)

    async def without_hidden(self, user: User, wait: WaitRecord) -> WaitRecord:
        """Return a wait without the names of documents, if its conversation has read one that a user may not see."""
        if not names_documents(wait):
            return wait
        hidden = await self._conversations.hidden_documents(user, wait.domain_id, wait.conversation_id)
        return hide_in_wait(wait) if hidden else wait

    async def get(self, user: User, wait_id: WaitId) -> WaitRecord:
        """Return one wait.

        Raises:
            NotFound: there is no such wait that concerns this user.
        """
        wait = await self._db.read(lambda conn: waits.get(conn, wait_id))
        if wait is None or not _sees(user, wait):
            raise NotFound("wait", wait_id, hidden=wait is not None)
        return await self.without_hidden(user, wait)

    async def ended_of(self, turn_id: TurnId) -> frozenset[str]:
        """Return the ended waits of a turn. The caller must have checked the user's access."""
        return frozenset(await self._db.read(lambda conn: waits.ended_of(conn, turn_id)))

    async def list_open_functions(self, turn_id: TurnId) -> list[WaitRecord]:
        """Return the open waits of a turn for results of the client's functions, oldest first."""
        return [wait for wait in await self.list_open(turn_id) if wait.kind is WaitKind.FUNCTION]

    async def list_open(self, turn_id: TurnId) -> list[WaitRecord]:
        """Return the open waits of a user's turn, oldest first. The caller must have checked the user's access."""
        return await self._db.read(lambda conn: waits.list_open(conn, turn_id))

    async def settle(self, user: User, wait: WaitRecord, action: WaitAction, content: Json) -> None:
        """Answer a wait. If it was already answered with the same decision, do nothing.

        Raises:
            AgenticRagError: as `answer`; `WaitAnswered` only if the earlier decision was different.
        """
        if wait.state is WaitState.OPEN:
            try:
                await self.answer(user, wait.id, action, content)
            except WaitAnswered:
                wait = await self.get(user, wait.id)
            else:
                return
        # A client that repeats its answer after a lost connection gets no error.
        if (wait.state is WaitState.ACCEPTED) != (action is WaitAction.ACCEPT):
            raise WaitAnswered(wait.state, wait.answered_by)

    def may_answer(self, user: User, wait: WaitRecord) -> bool:
        """Return whether a user may answer a wait."""
        return _sees(user, wait) and (wait.answerer is Answerer.OWNER or user.administers(wait.domain_id))

    async def answer(
        self, user: User, wait_id: WaitId, action: WaitAction, content: Json, *, via: Json | None = None
    ) -> WaitRecord:
        """Store a person's answer and resume the turn; the answer is durable when this returns.

        ``via``: details for the audit log about the way of the answer.

        Raises:
            NotFound: there is no such wait that concerns this user.
            Forbidden: only an admin of the domain may answer, or allow a tool in the whole domain; the wait stays open.
            WaitAnswered: the wait was already answered or has expired.
            InvalidInput: the answer does not match the request, or the rule for the tool cannot be stored; the wait
                stays open.
            ChangeHeld, ChangeOnTrial: the domain's evaluation does not let the rule pass now; the wait stays open.
        """
        wait = await self.get(user, wait_id)
        content, entry, scope = _check_answer(user, wait, action, content, via)
        at = now()

        def store(conn: Connection) -> WaitRecord:
            before = waits.get(conn, wait_id)
            if before is None:
                raise NotFound("wait", wait_id)
            over = before.expires_at <= at
            state = STATE_OF[action]
            remembers = scope != "once"  # the running turn keeps the rules with which it began
            # `finish` changes an open wait only, so of two answers at the same time one fails here.
            if over or not waits.finish(conn, wait_id, state, answer=content, by=user.id, at=at, remembered=remembers):
                raise WaitAnswered(WaitState.EXPIRED if over else before.state, before.answered_by)
            # In the same transaction: after a crash, the turn is found and resumed by this mark.
            turns.wake(conn, before.root_turn_id)
            audit(conn, entry)
            return before

        if scope == "domain" and wait.state is WaitState.OPEN:
            await self._allow_tool(wait.domain_id, str(wait.request["toolName"]), store)
        else:
            await self._db.write(store, durable=True)
        # After the commit: the turn reads the stored answer.
        await self._runtime.take_answers([wait])
        return await self.get(user, wait_id)

    async def answer_unasked(self, user: User, wait: WaitRecord, action: WaitAction, content: Json) -> Json:
        """Store an approval that came together with its call, as an ended wait, and return the answer as stored.

        The call belongs to no turn that could be resumed.

        Raises:
            Forbidden, InvalidInput, ChangeHeld, ChangeOnTrial: as `answer`; nothing is stored.
            NotFound: the conversation was deleted.
        """
        via = {"appOf": (wait.held or {}).get("appOf", "")}
        content, entry, scope = _check_answer(user, wait, action, content, via)
        remembered, at = scope != "once", now()
        ended = wait.replace(
            state=STATE_OF[action],
            answer=content,
            answered_by=user.id,
            answered_at=at,
            remembered=remembered,
            taken=True,
        )

        def store(conn: Connection) -> None:
            if conversations.get(conn, wait.conversation_id) is None:
                raise NotFound("conversation", wait.conversation_id)
            ended.insert(conn)
            audit(conn, entry)

        if scope == "domain":
            await self._allow_tool(wait.domain_id, str(wait.request["toolName"]), store)
        else:
            await self._db.write(store, durable=True)
        return content

    async def is_remembered(self, conversation_id: ConversationId, subject: str) -> bool:
        """Return whether a person has approved this subject for the rest of a conversation."""
        return await self._db.read(lambda conn: waits.is_remembered(conn, conversation_id, subject))

    async def _allow_tool(self, domain_id: str, tool: str, store: Callable[[Connection], object]) -> None:
        """Allow a tool in a domain; ``store`` writes the answer to the same transaction."""
        change: Json = {"toolPolicy": {tool: "allow"}}
        await self._gate.guard_settings(domain_id, change)
        await self._domains.update(domain_id, settings=change, replace_maps=False, tell=store)


def _check_answer(
    user: User, wait: WaitRecord, action: WaitAction, content: Json, via: Json | None
) -> tuple[Json, Entry, str]:
    """Return an answer in its stored form, its audit entry, and the scope of an approval.

    Raises:
        Forbidden: only an admin of the domain may give this answer.
        InvalidInput: the answer does not match the request.
    """
    if wait.answerer is Answerer.ADMIN and not user.administers(wait.domain_id):
        raise Forbidden("Only an admin of the domain may answer this.")
    if wait.state is WaitState.OPEN:
        content = read_answer(wait, action, content)
    details = {"kind": wait.kind.value, "conversationId": wait.conversation_id, **(via or {})}
    entry = change(f"wait.{action.value}", wait.id, **details)
    scope = content.get("scope", "once") if wait.kind is WaitKind.APPROVAL else "once"
    if scope == "domain" and not user.administers(wait.domain_id):
        raise Forbidden("Only an admin of the domain may allow a tool in the whole domain.")
    return content, entry, scope


def _sees(user: User, wait: WaitRecord) -> bool:
    """Return whether a user sees a wait, as the owner of its conversation or as an admin who may answer."""
    if not user.sees(wait.domain_id):
        return False
    return wait.user_id == user.id or (wait.answerer is Answerer.ADMIN and user.administers(wait.domain_id))


class SignInWaits:
    """Implements `agentic_rag.domains.sign_in_secrets.SignInListener`."""

    def __init__(self, database: Database, answers: Answers) -> None:
        self._db = database
        self._answers = answers

    async def signed_in(self, domain_id: str, server: str, user_id: str) -> None:
        """Resume the turns that wait for a sign-in at this server.

        An empty ``user_id`` means that one account serves all users.
        """
        at = now()

        def store(conn: Connection) -> list[WaitRecord]:
            waiting = [wait for wait in waits.list_open_urls(conn, domain_id) if _waits_for(wait, server, user_id)]
            for wait in waiting:
                waits.finish(conn, wait.id, WaitState.ACCEPTED, answer=None, by=user_id or wait.user_id, at=at)
                turns.wake(conn, wait.root_turn_id)
            return waiting

        for wait in await self._db.write(store, durable=True):
            self._answers.notify(wait.id)


def _waits_for(wait: WaitRecord, server: str, user_id: str) -> bool:
    """Return whether a wait is for a sign-in at this server by this user. An empty ``user_id`` matches all users."""
    return SIGN_IN in (wait.held or {}) and wait.request.get("server") == server and user_id in ("", wait.user_id)
