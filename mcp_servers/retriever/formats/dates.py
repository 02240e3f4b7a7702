"""Dates in the metadata of files (PDF, Office, HTML, front matter), normalised to `YYYY-MM-DD`."""

import re
from datetime import date

_DATE = re.compile(r"(?:D:)?(\d{4})-?(\d{2})-?(\d{2})(?!\d{0,3}-)")


def iso_date(text: object) -> str | None:
    """Return the date at the start of a text as `YYYY-MM-DD`, or None if there is no valid date.

    Accepts ISO 8601 and the form of PDF, `D:YYYYMMDD…`, with or without a time after it.
    """
    match = _DATE.match(str(text).strip().strip("\"'"))
    try:
        return date(int(match[1]), int(match[2]), int(match[3])).isoformat() if match else None
    except ValueError:
        return None


def latest_date(*texts: object) -> str | None:
    """Return the latest of the dates at the start of the texts, or None."""
    return max(filter(None, map(iso_date, texts)), default=None)
