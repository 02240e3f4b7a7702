"""From a stored MCP entry to what is started: placeholders replaced, secrets filled in.

Owns the rule where a value may come from: the domain's own variables and secrets, never this server's environment.
Pure: the values are given. Called when a server starts, and what it returns is kept in memory only.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from agentic_rag.directory.server_settings import sealed_name
from agentic_rag.errors import InvalidInput, PlaceholderUnset
from agentic_rag.tools.entries.placeholders import expand

Values = Mapping[str, str | None]
"""A domain's secrets by name; None: stored, and cannot be read."""


def resolved(server: str, config: Mapping[str, Any], secrets: Values) -> dict[str, Any]:
    """Return an entry's ``config`` with every value in place; its ``variables`` are the domain's.

    Raises:
        InvalidInput: names the key and the path of a value that is not set, cannot be read, or may not stand there.
    """
    config = dict(config)
    variables: Mapping[str, str] = config.pop("variables", {})
    path = f"mcpServers.{server}"
    for place in ("command", "url"):
        if config.get(place) is not None:
            config[place] = _open_text(config[place], f"{path}.{place}", variables, secrets)
    args = config.get("args") or ()
    config["args"] = [_open_text(text, f"{path}.args.{index}", variables, secrets) for index, text in enumerate(args)]
    for place in ("env", "headers"):
        given: Mapping[str, Any] = config.get(place) or {}
        config[place] = {
            name: _value(value, sealed_name(server, place, name), f"{path}.{place}.{name}", variables, secrets)
            for name, value in given.items()
        }
    return config


def _open_text(text: str, path: str, variables: Mapping[str, str], secrets: Values) -> str:
    """Return a text that every process may read."""

    def value_of(name: str) -> str | None:
        if name in secrets:
            raise InvalidInput(path, f"${{{name}}} is a secret; secrets stand in env and headers only.")
        return variables.get(name)

    return _expanded(text, path, value_of)


def _value(value: Any, name: str, path: str, variables: Mapping[str, str], secrets: Values) -> str:
    """Return a value of ``env`` or ``headers``, in whichever of its stored forms."""
    if isinstance(value, Mapping):
        text = secrets.get(name) if "set" in value else str(value["value"])
        if text is None:
            raise InvalidInput(path, "its stored value is missing or cannot be read; set it again.")
    else:
        text = str(value)

    def value_of(wanted: str) -> str | None:
        if wanted not in secrets:
            return variables.get(wanted)
        found = secrets[wanted]
        if found is None:
            raise InvalidInput(path, f"the secret {wanted} cannot be read; set it again.")
        return found

    found = _expanded(text, path, value_of)
    if re.search(r"\x00" if ".env." in path else r"[\x00\r\n]", found):
        raise InvalidInput(path, "its value has a line end or NUL where none may be.")
    return found


def _expanded(text: str, path: str, value_of: Callable[[str], str | None]) -> str:
    try:
        return expand(text, value_of)
    except PlaceholderUnset as exc:
        problem = f"${{{exc.name}}} has no value; set the variable or the secret {exc.name} of this domain."
        raise InvalidInput(path, problem) from exc
