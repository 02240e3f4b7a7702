"""REST routes for schedules, and the address at which a webhook fires one.

This module defines the answers. ``reach.schedules`` decides the rules.
"""

from collections.abc import Sequence

from pydantic import Field
from starlette.requests import Request

from agentic_rag.access.users import User
from agentic_rag.base.errors import (
    BodyTooLarge,
    InvalidInput,
    LimitReached,
    NotFound,
    ScheduleDisabled,
    ScheduleExists,
    Unauthenticated,
)
from agentic_rag.base.forms import Form
from agentic_rag.base.json_form import Absent
from agentic_rag.reach.schedules import (
    MAX_BODY,
    ScheduleChange,
    ScheduleForm,
    Schedules,
)
from agentic_rag.server.replies import Items, Redacted, answer, answer_from
from agentic_rag.server.routes.endpoints import SecretAnswer
from agentic_rag.server.routing import read_body, route
from agentic_rag.store.schedules import CatchUp, FiringRecord, FiringState, ScheduleRecord

SCHEDULES = "/api/domains/{domain}/schedules"
TRIGGERS = "/api/triggers/"


class FiringQuery(Form):
    """Number of firings, newest first."""

    limit: int = Field(50, ge=1, le=500)


@answer(kw_only=True)
class Schedule:
    """A prompt that is sent at set times (``cron``), or by a webhook to ``trigger``.

    ``problem`` says why the server paused it. ``secret`` signs the webhook and is shown once.
    """

    id: str
    name: str
    owner_id: str
    cron: str
    time_zone: str
    prompt: str
    role: str
    allowed_tools: Sequence[str]
    max_tokens: int | None
    endpoint_id: str
    catch_up: CatchUp
    max_failures: int
    enabled: bool
    problem: str
    failures: int
    next_at: str | None
    created_by: str
    created_at: str
    updated_at: str
    trigger: Absent[str] = None
    secret: Absent[str] = None


@answer(kw_only=True)
class Firing:
    """A run of a schedule. ``slot`` is its time, or the webhook's message. ``detail`` is an error or a reason."""

    id: str
    slot: str
    state: FiringState
    conversation_id: str
    turn_id: str
    detail: str
    created_at: str
    ended_at: str | None


@answer()
class Fired:
    """The run that a webhook started."""

    firing_id: str


class ScheduleRoutes:
    """Schedules."""

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules

    @route("GET", SCHEDULES)
    async def list(self, domain: str) -> Redacted[Items[Schedule]]:
        """List the schedules of a domain by name."""
        return Redacted(domain, Items([_show(record) for record in await self._schedules.list_of(domain)]))

    @route("POST", SCHEDULES, status=201, errors=[LimitReached, ScheduleExists])
    async def create(self, user: User, domain: str, body: ScheduleForm) -> Schedule:
        """Create a schedule, whose prompt is sent as the caller."""
        record, secret = await self._schedules.create(user, domain, body)
        return _show(record, secret)

    @route("GET", f"{SCHEDULES}/{{schedule}}")
    async def get(self, domain: str, schedule: str) -> Redacted[Schedule]:
        """Show a schedule."""
        return Redacted(domain, _show(await self._schedules.get(domain, schedule)))

    @route("PATCH", f"{SCHEDULES}/{{schedule}}", errors=[ScheduleExists])
    async def change(self, user: User, domain: str, schedule: str, body: ScheduleChange) -> Redacted[Schedule]:
        """Change a schedule. The caller becomes its owner."""
        return Redacted(domain, _show(await self._schedules.change(user, domain, schedule, body)))

    @route("DELETE", f"{SCHEDULES}/{{schedule}}")
    async def delete(self, domain: str, schedule: str) -> None:
        """Delete a schedule and the list of its runs. Conversations stay."""
        await self._schedules.delete(domain, schedule)

    @route("POST", f"{SCHEDULES}/{{schedule}}/secret")
    async def rotate(self, domain: str, schedule: str) -> SecretAnswer:
        """Replace the secret of a schedule's webhook. The old one is invalid at once."""
        return SecretAnswer(await self._schedules.rotate(domain, schedule))

    @route("POST", f"{SCHEDULES}/{{schedule}}/run", status=202, errors=[LimitReached])
    async def run(self, domain: str, schedule: str) -> Firing:
        """Run a schedule now, in addition to its times."""
        return _show_firing(await self._schedules.run_now(domain, schedule))

    @route("GET", f"{SCHEDULES}/{{schedule}}/firings")
    async def firings(self, domain: str, schedule: str, query: FiringQuery) -> Redacted[Items[Firing]]:
        """List the runs of a schedule, newest first."""
        firings = await self._schedules.firings(domain, schedule, query.limit)
        return Redacted(domain, Items([_show_firing(firing) for firing in firings]))

    @route(
        "POST",
        f"{TRIGGERS}{{schedule}}",
        allow="anyone",
        status=202,
        errors=[BodyTooLarge, InvalidInput, NotFound, LimitReached, ScheduleDisabled, Unauthenticated],
    )
    async def trigger(self, request: Request, schedule: str) -> Fired:
        """Run a schedule by a webhook that is signed as Standard Webhooks describes.

        The body, at most 32 KiB, reaches the model as data of an untrusted sender. A repeated message starts nothing.
        """
        body = await read_body(request, MAX_BODY)
        return Fired((await self._schedules.trigger(schedule, request.headers, body)).id)


def _show(record: ScheduleRecord, secret: str = "") -> Schedule:
    trigger = None if record.cron else f"{TRIGGERS}{record.id}"
    return answer_from(Schedule, record, trigger=trigger, secret=secret or None)


def _show_firing(record: FiringRecord) -> Firing:
    return answer_from(Firing, record)
