"""Endpoints and schedules of a domain as part of a bundle.

Owns their form in a bundle, without addresses, secrets and people. An import adds those whose names the domain lacks.
They are disabled until an admin has completed and enabled them, so that no import sends anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import Field, StringConstraints
from sqlalchemy import Connection

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.forms import Form, line, read_form
from agentic_rag.base.json_form import Json
from agentic_rag.store import endpoints, schedules
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.endpoints import Channel, EndpointRecord, EventKind
from agentic_rag.store.schedules import CatchUp, ScheduleRecord
from agentic_rag.tools.entries.reading import Note

MAX_ENTRIES = 100
CAME = "came with a bundle and is disabled until an admin completes it"


class BundledEndpoint(Form):
    """An endpoint of a bundle."""

    name: Annotated[str, StringConstraints(max_length=200)]
    channel: Channel
    events: Annotated[tuple[EventKind, ...], Field(max_length=len(EventKind))]
    with_texts: bool = False


class BundledSchedule(Form):
    """A schedule of a bundle."""

    name: Annotated[str, StringConstraints(max_length=200)]
    cron: Annotated[str, StringConstraints(max_length=200)] = ""
    time_zone: Annotated[str, StringConstraints(max_length=100)] = "UTC"
    prompt: Annotated[str, StringConstraints(max_length=10_000)]
    role: Annotated[str, StringConstraints(max_length=64)] = ""
    allowed_tools: Annotated[tuple[Annotated[str, StringConstraints(max_length=128)], ...], Field(max_length=50)] = ()
    max_tokens: int | None = Field(None, ge=1, le=1_000_000_000)
    catch_up: CatchUp = CatchUp.ONCE
    max_failures: int = Field(3, ge=1, le=100)


Bundled = TypeVar("Bundled", BundledEndpoint, BundledSchedule)


@dataclass(frozen=True, slots=True)
class BundledNotifications:
    """The endpoints and schedules of a bundle. ``notes`` list those that are invalid and left out."""

    endpoints: tuple[BundledEndpoint, ...] = ()
    schedules: tuple[BundledSchedule, ...] = ()
    notes: tuple[Note, ...] = ()


def write_notifications(found: Sequence[EndpointRecord], timed: Sequence[ScheduleRecord]) -> Json:
    """Return endpoints and schedules in the form of a bundle."""
    return {
        "endpoints": [
            {
                "name": each.name,
                "channel": each.channel.value,
                "events": [kind.value for kind in each.events],
                "withTexts": each.with_texts,
            }
            for each in found
        ],
        "schedules": [
            {
                "name": each.name,
                "cron": each.cron,
                "timeZone": each.time_zone,
                "prompt": each.prompt,
                "role": each.role,
                "allowedTools": list(each.allowed_tools),
                "maxTokens": each.max_tokens,
                "catchUp": each.catch_up.value,
                "maxFailures": each.max_failures,
            }
            for each in timed
        ],
    }


def read_notifications(value: Json, path: str) -> BundledNotifications:
    """Return the endpoints and schedules of a bundle. Invalid ones become notes."""
    notes: list[Note] = []
    named_endpoints = {each.name: each for each in _read(value, "endpoints", BundledEndpoint, path, notes)}
    named_schedules = {each.name: each for each in _read(value, "schedules", BundledSchedule, path, notes)}
    return BundledNotifications(tuple(named_endpoints.values()), tuple(named_schedules.values()), tuple(notes))


def _read(value: Json, name: str, kind: type[Bundled], path: str, notes: list[Note]) -> list[Bundled]:
    listed = value.get(name, [])
    if not isinstance(listed, list) or len(listed) > MAX_ENTRIES:
        notes.append(Note(f"{path}.{name}", f"is left out: a list of at most {MAX_ENTRIES} is expected"))
        return []
    found = []
    for number, each in enumerate(listed):
        place = f"{path}.{name}.{number}"
        try:
            form = read_form(kind, each, place)
            line(f"{place}.name", form.name, 200, required=True)
        except InvalidInput as exc:
            notes.append(Note(exc.path or place, f"is left out: {exc.problem}"))
        else:
            found.append(form)
    return found


def missing_names(conn: Connection, domain_id: str, bundled: BundledNotifications) -> tuple[set[str], set[str]]:
    """Return the names of the bundle's endpoints and schedules that a domain lacks."""
    known = {each.name for each in endpoints.of_domain(conn, domain_id)}
    timed = {each.name for each in schedules.of_domain(conn, domain_id)}
    return {each.name for each in bundled.endpoints} - known, {each.name for each in bundled.schedules} - timed


def merge_notifications(conn: Connection, domain_id: str, bundled: BundledNotifications, user_id: str) -> None:
    """Add the endpoints and schedules that a domain lacks, disabled. Part of the import's transaction."""
    new_endpoints, new_schedules = missing_names(conn, domain_id, bundled)
    at = now()
    common: Json = {"domain_id": domain_id, "enabled": False, "problem": CAME}
    common |= {"created_by": user_id, "created_at": at, "updated_at": at}
    for endpoint in bundled.endpoints:
        if endpoint.name in new_endpoints:
            named: Json = {"name": endpoint.name, "channel": endpoint.channel, "events": endpoint.events}
            fields: Json = {"shown": "", "with_texts": endpoint.with_texts, **named, **common}
            EndpointRecord(id=new_id("end"), **fields).insert(conn)
    for schedule in bundled.schedules:
        if schedule.name in new_schedules:
            values: Json = {name: getattr(schedule, name) for name in BundledSchedule.model_fields}
            ScheduleRecord(id=new_id("sched"), owner_id=user_id, **values, **common).insert(conn)
