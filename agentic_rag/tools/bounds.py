"""Size limits for the tools of a server: each tool, and a whole list. Pure.

Owns the limits and the texts about tools beyond them. Every turn of every client pays for a tool list: the list is
read, hashed, compared, counted and sent to the model.
"""

import json
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from agentic_rag.tools.schema_compat import Document, Schema, find_top_problem

SCHEMA_BYTES = 32 * 1024
"""A tool with a longer input schema (as JSON) is left out."""

SCHEMA_DEPTH = 32
"""A tool whose input schema is nested deeper is left out."""

SCHEMA_KEYWORDS = 2_000
"""A tool whose input schema has more members and items, at all depths together, is left out."""

DESCRIPTION_BYTES = 8 * 1024
"""A longer description is cut, with a mark."""

LIST_BYTES = 256 * 1024
"""Limit for the descriptions and schemas of one server's list together; tools beyond the limit are left out."""

AGENT_BYTES = 1024 * 1024
"""The same limit for all user-configured servers in one turn."""

NAMED = 5
"""Maximum number of left-out tools that are listed with name and reason; the rest is only counted."""


class Sized(Protocol):
    """The parts of a tool that are measured."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def input_schema(self) -> Schema: ...


S = TypeVar("S", bound=Sized)


def size_of(tool: Sized) -> int:
    """Return about how many bytes a tool adds to each request, with its description truncated to the limit."""
    return min(len(tool.description or ""), DESCRIPTION_BYTES) + len(json.dumps(tool.input_schema))


def find_schema_problem(schema: Document) -> str:
    """Return why a tool with this input schema is left out, or an empty text."""
    problem = find_top_problem(schema)
    if problem:
        return problem
    depth, keywords = _measure(schema)
    if depth > SCHEMA_DEPTH:
        return f"its input schema is nested deeper than {SCHEMA_DEPTH} levels"
    if keywords > SCHEMA_KEYWORDS:
        return f"its input schema has more than {SCHEMA_KEYWORDS} keywords and items"
    try:
        size = len(json.dumps(schema))
    except (TypeError, ValueError):
        return "its input schema is not plain JSON"
    return f"its input schema is longer than {SCHEMA_BYTES} bytes" if size > SCHEMA_BYTES else ""


def _measure(schema: Document) -> tuple[int, int]:
    """Return depth and number of members and items, level by level; stops once a limit is exceeded."""
    depth = keywords = 0
    level: list[Any] = [schema]
    while level and depth <= SCHEMA_DEPTH and keywords <= SCHEMA_KEYWORDS:
        depth += 1
        inner: list[Any] = []
        for value in level:
            inner += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        keywords += len(inner)
        level = inner
    return depth, keywords


def fit_list(listed: Sequence[S]) -> tuple[tuple[S, ...], tuple[tuple[str, str], ...]]:
    """Return the tools of a list that fit, in order, and the name and reason of each tool that does not."""
    accepted: list[S] = []
    problems: list[tuple[str, str]] = []
    size = 0
    for tool in listed:
        problem = find_schema_problem(tool.input_schema)
        cost = 0 if problem else size_of(tool)
        if not problem and size + cost > LIST_BYTES:
            problem = f"the server's list would be longer than {LIST_BYTES} bytes"
        if problem:
            problems.append((tool.name, problem))
        else:
            size += cost
            accepted.append(tool)
    return tuple(accepted), tuple(problems)


def describe_left_out(problems: Sequence[tuple[str, str]]) -> str:
    """Return one line on the tools that are left out, each with its reason."""
    if not problems:
        return ""
    listed = "; ".join(f"{name[:64]!r}: {problem}" for name, problem in problems[:NAMED])
    more = f"; and {len(problems) - NAMED} more" if len(problems) > NAMED else ""
    return f"{len(problems)} of its tools are left out: {listed}{more}"
