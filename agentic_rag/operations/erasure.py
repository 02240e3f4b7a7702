"""Erase a person: delete all personal data and keep only a number in the usage statistics.

The order of the steps is fixed. First the person's access ends. Then conversations and memories are deleted; each step
finds the remaining ones through the rows. The user's row goes last, in one transaction with the audit entry. After an
interruption, the same command finishes the erasure.
"""

from pathlib import Path

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.keys import Access
from agentic_rag.base import failpoints
from agentic_rag.base.errors import NotFound
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.sign_in_secrets import forget_user as forget_sign_ins
from agentic_rag.operations.deletion import Deletion
from agentic_rag.roles.memories import Memories
from agentic_rag.store import (
    authorizations,
    budgets,
    conversations,
    deliveries,
    endpoints,
    evaluation,
    extractions,
    history,
    images,
    keys,
    logins,
    message_texts,
    prompts,
    schedules,
    secrets,
    sources,
    tool_lists,
    usage,
    users,
    waits,
)
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.secrets import endpoint_secret, schedule_secret
from agentic_rag.store.usage import Scope
from agentic_rag.store.users import UserRecord, UserState


class Erasure:
    """Erases users. ``access`` ends their access."""

    def __init__(
        self, database: Database, directory: Directory, access: Access, deletion: Deletion, memories: Memories
    ) -> None:
        self._db = database
        self._directory = directory
        self._access = access
        self._deletion = deletion
        self._memories = memories

    async def erase(self, user_id: str) -> int:
        """Delete a person's conversations, memories, tokens, logins and keys.

        Returns the number that replaces the user in the usage.

        Existing rows of the audit log keep the name: they cannot be changed.

        Raises:
            NotFound: there is no such user.
            WorkspaceUnavailable, StorageError: something cannot be removed now. The user stays locked out; repeat the
                call.
        """
        audit_entry = change("user.erase", user_id)

        def shut(conn: Connection) -> UserRecord:
            user = users.get(conn, user_id)
            if user is None or user.state is UserState.ERASED:
                raise NotFound("user", user_id)
            users.update(conn, user_id, now(), state=UserState.ERASING)
            keys.revoke_of_user(conn, user_id, now())
            waits.forget_user(conn, user_id, f"#{user.number}")
            forget_sign_ins(conn, user_id, f"#{user.number}")
            _forget_reach(conn, user_id, f"#{user.number}")
            sources.forget_owner(conn, user_id, f"#{user.number}")
            logins.end_of_user(conn, user_id)
            authorizations.end_of_user(conn, user_id)
            return user

        user = await self._db.write(shut, durable=True)
        self._access.drop(user_ids=(user_id,))
        failpoints.reached("erase.shut")
        while owned := await self._db.read(lambda conn: conversations.of_owner(conn, user_id)):
            for conversation in owned:  # a request in progress may have started another one
                await self._deletion.remove(conversation)
                failpoints.reached("erase.conversation")
        for domain in await self._directory.list_all():
            await self._memories.erase(Path(domain.workspace), user_id)
            failpoints.reached("erase.memories")

        def forget(conn: Connection) -> None:
            images.forget_of_user(conn, user_id)
            prompts.prune(conn, made_before=now())  # each prompt names its user
            extractions.delete_of_user(conn, user_id)
            history.rename_author(conn, user_id, f"#{user.number}")
            evaluation.rename_user(conn, user_id, f"#{user.number}")
            tool_lists.delete_of_user(conn, user_id)
            usage.rename_user(conn, user_id, f"#{user.number}")
            budgets.forget(conn, Scope.USER, user_id)
            # Again, because a request that had begun before the first step may have stored one since.
            logins.end_of_user(conn, user_id)
            authorizations.end_of_user(conn, user_id)
            keys.delete_of_user(conn, user_id)
            message_texts.purge(conn)
            users.delete(conn, user_id)
            users.insert(conn, _number_of(user))
            audit(conn, audit_entry)

        await self._db.write(forget, durable=True)
        await self._access.apply_changes()
        return user.number


def _forget_reach(conn: Connection, user_id: str, instead: str) -> None:
    """Delete a person's schedules, endpoints and notifications, and replace the name where it stays."""
    for schedule in schedules.of_owner(conn, user_id):
        schedules.delete(conn, schedule.id)
        secrets.delete(conn, schedule.domain_id, [schedule_secret(schedule.id)])
    schedules.rename_creator(conn, user_id, instead)
    for endpoint in endpoints.forget_user(conn, user_id, instead):
        endpoints.delete(conn, endpoint.id)
        deliveries.delete_of_endpoint(conn, endpoint.id)
        secrets.delete(conn, endpoint.domain_id, [endpoint_secret(endpoint.id)])
    deliveries.delete_of_user(conn, user_id)


def _number_of(user: UserRecord) -> UserRecord:
    """Return the row that remains of an erased user: the date and the number, which is never assigned again."""
    at = now()
    return UserRecord(id=f"#{user.number}", number=user.number, state=UserState.ERASED, created_at=at, updated_at=at)
