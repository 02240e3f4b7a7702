"""``server.json`` of the MCP registry, read as the entry that it describes. Pure.

Owns the choice among its packages and addresses, and the translation of its arguments and variables into an entry's: a
value for the user to fill in becomes a placeholder, a secret is named and never filled in. Knows no catalogue: the
entry is handled like any other one. https://github.com/modelcontextprotocol/registry (``packages``, ``remotes``)
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentic_rag.base.errors import InvalidInput
from agentic_rag.tools.entries.names import fit_name

_RUNNERS = {"npm": "npx", "pypi": "uvx"}
_FORMATS = {"filepath": "{path:workspace}"}
MAX_FIELDS = 100


@dataclass(slots=True)
class ServerDescription:
    """The entry of a ``server.json``: ``{name: entry}`` as people paste it.

    ``kinds``: the slot of each placeholder that is known; ``notes``: the settings that its admin must supply, as
    ``(path, text)``; ``secrets``: names of the variables that are secret.
    """

    entries: dict[str, object]
    kinds: dict[str, str] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)


def is_server_json(document: object) -> bool:
    """Return whether a document is a ``server.json``, and not a map of entries."""
    if not isinstance(document, Mapping) or not isinstance(document.get("name"), str):
        return False
    return isinstance(document.get("packages"), list) or isinstance(document.get("remotes"), list)


def read_server_json(document: Mapping[str, object], path: str) -> ServerDescription:
    """Return the server that a ``server.json`` describes: its first package that can run here, else its address.

    Raises:
        InvalidInput: Names the place of the unusable part.
    """
    name = fit_name(str(document["name"])[:200])
    described = ServerDescription({})
    packages = _objects(document.get("packages"), f"{path}.packages")
    usable = [
        (at, package) for at, package in enumerate(packages) if _kind(package) in _RUNNERS and _speaks_stdio(package)
    ]
    if usable:
        at, package = usable[0]
        described.entries[name] = _read_package(package, f"{path}.packages.{at}", described)
        return described
    remotes = _objects(document.get("remotes"), f"{path}.remotes")
    if not remotes:
        kinds = ", ".join(sorted({_kind(package) or "?" for package in packages})) or "none"
        reason = f"no package of npm or PyPI that speaks over stdio, and no address (its packages: {kinds})"
        raise InvalidInput(f"{path}.packages", f"{reason}. A bundle is proposed by its file: agentic-rag mcp propose.")
    headers = {}
    for at, header in enumerate(_objects(remotes[0].get("headers"), f"{path}.remotes.0.headers")):
        place = f"{path}.remotes.0.headers.{at}"
        headers[_text(header, "name", place)] = _value(header, place, described, secret_here=True)
    kind = "sse" if remotes[0].get("type") == "sse" else "http"
    described.entries[name] = {
        "type": kind,
        "url": _text(remotes[0], "url", f"{path}.remotes.0"),
        "headers": headers,
    }
    return described


def _read_package(package: Mapping[str, object], path: str, described: ServerDescription) -> dict[str, object]:
    kind = _kind(package)
    identifier = _text(package, "identifier" if "identifier" in package else "name", path)
    version = package.get("version")
    if not isinstance(version, str) or not re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}", version):
        raise InvalidInput(f"{path}.version", "an exact version is needed.")
    if _objects(_either(package, "runtimeArguments"), path):
        raise InvalidInput(f"{path}.runtimeArguments", "options of the runner run any program; none are taken.")
    pinned = f"{identifier}=={version}" if kind == "pypi" else f"{identifier}@{version}"
    args = [*(("-y",) if kind == "npm" else ()), pinned]
    for at, argument in enumerate(_objects(_either(package, "packageArguments"), f"{path}.packageArguments")):
        place = f"{path}.packageArguments.{at}"
        if argument.get("type") == "named":
            args.append(_text(argument, "name", place))
            if "value" not in argument and "default" not in argument and not _hint(argument):
                continue  # a switch
        args.append(_value(argument, place, described, secret_here=False))
    env = {}
    for at, variable in enumerate(_objects(_either(package, "environmentVariables"), f"{path}.environmentVariables")):
        place = f"{path}.environmentVariables.{at}"
        env[_text(variable, "name", place)] = _value(variable, place, described, secret_here=True)
        if _either(variable, "isSecret") is True:
            described.secrets.append(_text(variable, "name", place))
    return {"type": "stdio", "command": _RUNNERS[kind], "args": args, "env": env}


def _value(
    field_: Mapping[str, object], place: str, described: ServerDescription, *, secret_here: bool
) -> str | object:
    """Return the value of an argument, a variable or a header: the given value, else a placeholder to be filled in."""
    secret = _either(field_, "isSecret") is True
    if secret and not secret_here:
        raise InvalidInput(place, "this is secret, and every process can read arguments; it has to be a variable.")
    fixed = field_.get("value")
    if isinstance(fixed, str) and "{" not in fixed and not secret:
        return {"value": fixed, "secret": False} if secret_here else fixed
    default = field_.get("default")
    if isinstance(default, str) and not secret and _either(field_, "isRequired") is not True:
        return {"value": default, "secret": False} if secret_here else default
    name = re.sub(r"[^A-Za-z0-9]+", "_", _hint(field_)).strip("_").upper()[:60] or "VALUE"
    name = f"VAR_{name}" if name[0].isdigit() else name
    described.kinds[name] = _FORMATS.get(str(field_.get("format")), "{text}")
    noun = "secret" if secret else "variable"
    described.notes.append((place, f"set the {noun} {name} of this domain."))
    return f"${{{name}}}"


def _hint(field_: Mapping[str, object]) -> str:
    for key in ("valueHint", "value_hint", "name"):
        text = field_.get(key)
        if isinstance(text, str) and text:
            return text[:100]
    return ""


def _kind(package: Mapping[str, object]) -> str:
    return str(_either(package, "registryType") or package.get("registry_name") or "")


def _speaks_stdio(package: Mapping[str, object]) -> bool:
    transport = package.get("transport")
    return not isinstance(transport, Mapping) or transport.get("type", "stdio") == "stdio"


def _either(value: Mapping[str, object], name: str) -> object:
    """Return a field by its name, which older documents write in snake_case."""
    older = re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name)
    return value.get(name, value.get(older))


def _objects(value: object, path: str) -> Sequence[Mapping[str, object]]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_FIELDS or not all(isinstance(item, Mapping) for item in value):
        raise InvalidInput(path, f"a list of at most {MAX_FIELDS} objects is expected.")
    return value


def _text(value: Mapping[str, object], key: str, path: str) -> str:
    text = value.get(key)
    if not isinstance(text, str) or not 1 <= len(text) <= 1000:
        raise InvalidInput(f"{path}.{key}", "a text is expected.")
    return text
