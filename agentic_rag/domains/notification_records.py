"""Endpoints, schedules and sources of a domain as part of a bundle.

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
from agentic_rag.directory.source_forms import SourceForm, chosen_kind, free_folder
from agentic_rag.store import endpoints, schedules, sources
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.endpoints import MAX_ENDPOINTS, Channel, EndpointRecord, EventKind
from agentic_rag.store.schedules import MAX_SCHEDULES, CatchUp, ScheduleRecord
from agentic_rag.store.sources import MAX_SOURCES, SourceKind, SourceRecord, SourceState
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


Bundled = TypeVar("Bundled", BundledEndpoint, BundledSchedule, SourceForm)


@dataclass(frozen=True, slots=True)
class BundledNotifications:
    """The endpoints, schedules and sources of a bundle.

    ``notes`` list those that are left out. ``path`` names their file in the notes.
    """

    endpoints: tuple[BundledEndpoint, ...] = ()
    schedules: tuple[BundledSchedule, ...] = ()
    sources: tuple[SourceForm, ...] = ()
    notes: tuple[Note, ...] = ()
    path: str = ""


def write_notifications(
    endpoint_records: Sequence[EndpointRecord], timed: Sequence[ScheduleRecord], read_from: Sequence[SourceRecord]
) -> Json:
    """Return endpoints, schedules and sources in the form of a bundle."""
    return {
        "endpoints": [
            {
                "name": endpoint.name,
                "channel": endpoint.channel.value,
                "events": [kind.value for kind in endpoint.events],
                "withTexts": endpoint.with_texts,
            }
            for endpoint in endpoint_records
        ],
        "schedules": [
            {
                "name": schedule.name,
                "cron": schedule.cron,
                "timeZone": schedule.time_zone,
                "prompt": schedule.prompt,
                "role": schedule.role,
                "allowedTools": list(schedule.allowed_tools),
                "maxTokens": schedule.max_tokens,
                "catchUp": schedule.catch_up.value,
                "maxFailures": schedule.max_failures,
            }
            for schedule in timed
        ],
        "sources": [
            {
                "name": source.name,
                source.kind.value: source.config,
                "labels": list(source.labels),
                "exclude": list(source.exclude),
                "intervalMinutes": source.interval_minutes,
                "graceHours": source.grace_hours,
                "maxItems": source.max_items,
            }
            for source in read_from
            if source.state is not SourceState.DELETING
        ],
    }


def read_notifications(value: Json, path: str) -> BundledNotifications:
    """Return the endpoints, schedules and sources of a bundle. Invalid ones become notes."""
    notes: list[Note] = []
    bundled_endpoints = _read(value, "endpoints", BundledEndpoint, path, notes)
    # Unlike endpoints, schedules and sources have unique names in a domain: the last one of a name counts.
    named_schedules = {schedule.name: schedule for schedule in _read(value, "schedules", BundledSchedule, path, notes)}
    named_sources = {source.name: source for source in _read(value, "sources", SourceForm, path, notes)}
    for name, source in list(named_sources.items()):
        if chosen_kind(source) is None:
            notes.append(
                Note(f"{path}.sources", f"{name!r} is left out: exactly one of mcp, folder and website is needed")
            )
            del named_sources[name]
    return BundledNotifications(
        tuple(bundled_endpoints), tuple(named_schedules.values()), tuple(named_sources.values()), tuple(notes), path
    )


def _read(value: Json, name: str, kind: type[Bundled], path: str, notes: list[Note]) -> list[Bundled]:
    listed = value.get(name, [])
    if not isinstance(listed, list) or len(listed) > MAX_ENTRIES:
        notes.append(Note(f"{path}.{name}", f"is left out: a list of at most {MAX_ENTRIES} is expected"))
        return []
    forms = []
    for number, item in enumerate(listed):
        place = f"{path}.{name}.{number}"
        try:
            form = read_form(kind, item, place)
            line(f"{place}.name", form.name, 200, required=True)
        except InvalidInput as exc:
            notes.append(Note(exc.path or place, f"is left out: {exc.problem}"))
        else:
            forms.append(form)
    return forms


def notifications_to_add(conn: Connection, domain_id: str, bundled: BundledNotifications) -> BundledNotifications:
    """Return the endpoints, schedules and sources that an import adds to a domain: those whose names the domain lacks.

    Those beyond a limit of the domain become notes.
    """
    notes = list(bundled.notes)
    stored: dict[str, Sequence[EndpointRecord] | Sequence[ScheduleRecord] | Sequence[SourceRecord]] = {
        "endpoints": endpoints.of_domain(conn, domain_id),
        "schedules": schedules.of_domain(conn, domain_id),
        "sources": sources.of_domain(conn, domain_id),
    }

    def choose(noun: str, listed: Sequence[Bundled], limit: int) -> tuple[Bundled, ...]:
        names = {record.name for record in stored[noun]}
        new = [item for item in listed if item.name not in names]
        room = max(0, limit - len(stored[noun]))
        problem = f"is left out: a domain has at most {limit} {noun}"
        notes.extend(Note(f"{bundled.path}.{noun}", f"{item.name!r} {problem}") for item in new[room:])
        return tuple(new[:room])

    return BundledNotifications(
        choose("endpoints", bundled.endpoints, MAX_ENDPOINTS),
        choose("schedules", bundled.schedules, MAX_SCHEDULES),
        choose("sources", bundled.sources, MAX_SOURCES),
        tuple(notes),
    )


def merge_notifications(conn: Connection, domain_id: str, bundled: BundledNotifications, user_id: str) -> None:
    """Add the endpoints, schedules and sources that a domain lacks, disabled. Part of the import's transaction."""
    added = notifications_to_add(conn, domain_id, bundled)
    at = now()
    common: Json = {"domain_id": domain_id, "enabled": False, "problem": CAME}
    common |= {"created_by": user_id, "created_at": at, "updated_at": at}
    for endpoint in added.endpoints:
        identity: Json = {"name": endpoint.name, "channel": endpoint.channel, "events": endpoint.events}
        fields: Json = {"shown": "", "with_texts": endpoint.with_texts, **identity, **common}
        EndpointRecord(id=new_id("end"), **fields).insert(conn)
    for schedule in added.schedules:
        values: Json = {name: getattr(schedule, name) for name in BundledSchedule.model_fields}
        ScheduleRecord(id=new_id("sched"), owner_id=user_id, **values, **common).insert(conn)
    folders = [record.folder for record in sources.of_domain(conn, domain_id)]
    for source in added.sources:
        chosen = chosen_kind(source)
        if chosen is None:
            continue
        folder = free_folder(source.name, folders)
        folders.append(folder)  # names of this bundle may differ only in characters that no folder has
        kind, config = chosen
        SourceRecord(
            id=new_id("src"),
            domain_id=domain_id,
            name=source.name,
            kind=SourceKind(kind),
            config=config.model_dump(mode="json", by_alias=True),
            folder=folder,
            labels=source.labels,
            exclude=source.exclude,
            interval_minutes=source.interval_minutes,
            grace_hours=source.grace_hours,
            max_items=source.max_items,
            enabled=False,
            owner_id=user_id,
            notes=(CAME,),
            created_at=at,
            updated_at=at,
        ).insert(conn)
