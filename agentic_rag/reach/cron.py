"""Firing times of a schedule: cron fields in a time zone.

Daylight saving follows Debian's cron (`cronsim`): a time that does not exist fires right after the gap, and a time that
exists twice fires once. A field of minutes or hours that begins with ``*`` follows elapsed time instead.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise, takewhile
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from agentic_rag.base.errors import InvalidInput
from agentic_rag.store.clock import seconds_of, time_text

MAX_CRON: Final = 200
"""Maximum characters of the cron fields."""
MIN_SECONDS: Final = 300.0
"""Minimum seconds between two firing times."""
CHECKED_TIMES: Final = 400
"""Number of firing times in which the minimum is checked."""
CHECKED: Final = timedelta(days=3_660)
"""Period in which the minimum is checked."""


@lru_cache(maxsize=1)
def time_zones() -> frozenset[str]:
    """Return the names of all time zones."""
    return frozenset(available_timezones())


def check_time_zone(name: str) -> None:
    """Check the name of a time zone.

    Raises:
        InvalidInput: there is no such time zone.
    """
    if name not in time_zones():
        raise InvalidInput("timeZone", f"{name[:100]!r} is no time zone; a name such as Europe/Berlin is expected.")


def check_cron(cron: str, at: str, shortest: float = MIN_SECONDS) -> str:
    """Return cron fields with single spaces.

    Raises:
        InvalidInput: the fields are malformed, never fire, or fire more often than every ``shortest`` seconds.
    """
    if len(cron) > MAX_CRON:
        raise InvalidInput("cron", f"{len(cron)} characters; at most {MAX_CRON} are possible.")
    fields = cron.split()
    if len(fields) != 5:
        names = "minute, hour, day of month, month, day of week"
        raise InvalidInput("cron", f"{cron!r} has {len(fields)} fields; five are expected: {names}.")
    cron = " ".join(fields)
    start = datetime.fromtimestamp(seconds_of(at), UTC)
    try:
        dates = CronSim(cron, start)
        first = next(dates, None)  # it may lie beyond the checked period: a 29 February, for example
        end = start + CHECKED
        later = takewhile(lambda date: date < end, islice(dates, CHECKED_TIMES))
        times = [] if first is None else [first, *later]
    except (CronSimError, ValueError, OverflowError) as exc:
        raise InvalidInput("cron", f"{cron!r} never fires or cannot be read: {exc}.") from exc
    if not times:
        raise InvalidInput("cron", f"{cron!r} never fires: no date matches it.")
    closest = min(((after - before).total_seconds() for before, after in pairwise(times)), default=shortest)
    if closest < shortest:
        problem = f"{cron!r} fires every {closest:g} s; at least {shortest:g} s must lie between two runs."
        raise InvalidInput("cron", problem)
    return cron


def next_time(cron: str, zone: str, after: str) -> str | None:
    """Return the first firing time after a time (both UTC), or None if there is none within 50 years."""
    moment = datetime.fromtimestamp(seconds_of(after), ZoneInfo(zone))
    for date in CronSim(cron, moment):
        seconds = date.astimezone(UTC).timestamp()
        if seconds > seconds_of(after):
            return time_text(seconds)
    return None


def last_time(cron: str, zone: str, until: str) -> str | None:
    """Return the last firing time that is not after a time (both UTC), or None."""
    moment = datetime.fromtimestamp(seconds_of(until), ZoneInfo(zone))
    # The fields have no seconds, so a step back finds a time close to the end; those up to the end are walked forward.
    begin = moment.replace(microsecond=0) + timedelta(seconds=1)
    for date in CronSim(cron, begin, reverse=True):
        seconds = date.astimezone(UTC).timestamp()
        if seconds <= seconds_of(until):
            return time_text(seconds)
    return None


def times_between(cron: str, zone: str, first: str, until: str, most: int) -> list[str]:
    """Return at most ``most`` firing times from ``first``, which is one, to ``until`` (UTC)."""
    times: list[str] = []
    following: str | None = first
    while following is not None and following <= until and len(times) < most:
        times.append(following)
        following = next_time(cron, zone, following)
    return times
