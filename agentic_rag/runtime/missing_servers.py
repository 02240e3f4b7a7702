"""Notices to the reader of a turn about servers that cannot be called. Pure."""

from collections.abc import Iterator

from agentic_rag.base.events import Notice
from agentic_rag.tools.base import Toolset


def missing_notices(toolset: Toolset, *, admin: bool) -> Iterator[Notice]:
    """Yield a notice for each unavailable server. Only admins see the reason, which contains paths and addresses."""
    missing = toolset.missing
    reasons: list[tuple[str, str]] = [(name, "") for name in missing]
    if admin and (notices := toolset.notices):
        noticed_names = {name for name, _ in notices}
        reasons = [*notices, *((name, "") for name in missing if name not in noticed_names)]
    for name, reason in reasons:
        starting = missing.get(name, False)
        code = "MCP_SERVER_STARTING" if starting else "MCP_SERVER_UNAVAILABLE"
        plain = "is still starting." if starting else "is not available now."
        yield Notice(code, f"{name}: {reason}" if reason else f"{name} {plain}")
