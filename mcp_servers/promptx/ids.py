"""Rules for ids and plain text, which roles and memories share. Pure."""

import re
from typing import Final

from mcp_servers.promptx.errors import BadRoleId

ID: Final = re.compile(r"\w[\w.-]{0,63}\Z")
"""A role or resource id, in any script."""


def check_id(value: str, field: str = "role") -> str:
    """Return `value` if it is a legal id.

    Raises:
        BadRoleId: `value` is no legal id.
    """
    if not ID.match(value):
        raise BadRoleId(value, field)
    return value


def is_plain(text: str) -> bool:
    """Return whether a text can be stored and sent: it has no NUL and no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
