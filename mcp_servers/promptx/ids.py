"""What counts as an id and as plain text. Pure; the one rule both roles and memories follow."""

import re
from typing import Final

from mcp_servers.promptx.errors import BadRoleId

ID: Final = re.compile(r"\w[\w.-]{0,63}\Z")
"""A role or resource id, in any script."""


def check_id(value: str, field: str = "role") -> str:
    """Return `value` if it is a legal id.

    Raises:
        BadRoleId: it is not.
    """
    if not ID.match(value):
        raise BadRoleId(value, field)
    return value


def is_plain(text: str) -> bool:
    """Whether a text is Unicode that can be stored and sent: no NUL, no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
