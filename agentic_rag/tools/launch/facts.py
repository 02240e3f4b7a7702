"""Facts about a package or program that an operator sees before a line may run. Pure.

Owns the facts, and reads them from a registry's output for an npm package. All of the output is untrusted: it is
truncated, and shown as text.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agentic_rag.tools.entries.entry import digest

MAX_LISTED = 50
"""Maximum number of dependencies and programs that are shown."""
TEXT_CHARS = 200
_INSTALL_SCRIPTS = ("preinstall", "install", "postinstall")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about the program that would run.

    ``registry``: ``npm``, ``pypi``, ``mcpb`` (a bundle), or empty for a program of this machine.
    ``integrity``: hash of the package as in the registry (``sha512-…`` for npm, else ``sha256-…`` in hexadecimal), or
    of all ``files`` together.
    ``install_scripts``: scripts that the package declares for its installation; none is ever run.
    ``files``: SHA-256 by name, of a program and of its files in the operator's folder.
    ``programs``: those that the package contains.
    ``fixed``: variables that the line itself sets.
    ``warnings``: sentences for the operator.
    """

    name: str
    registry: str = ""
    version: str = ""
    integrity: str = ""
    license: str = ""
    size_bytes: int = 0
    file_count: int = 0
    install_scripts: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def same_content(self, other: "Facts") -> bool:
        """Return whether the same bytes would run."""
        own_content, other_content = (
            (facts.registry, facts.name, facts.version, facts.integrity, dict(facts.files)) for facts in (self, other)
        )
        return own_content == other_content


def read_npm_facts(output: str) -> Facts | None:
    """Return the facts in the output of ``npm view --json`` for one version; None if the output has none."""
    try:
        document = json.loads(output or "null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        return None
    dist = _object(document.get("dist"))
    scripts = _object(document.get("scripts"))
    declared = [f"{name}: {scripts[name]}" for name in _INSTALL_SCRIPTS if isinstance(scripts.get(name), str)]
    if document.get("hasInstallScript") and not declared:
        declared = ["(an install script)"]
    programs = document.get("bin")
    name = document["name"]
    return Facts(
        registry="npm",
        name=name,
        version=_text(document.get("version")),
        integrity=_text(dist.get("integrity")),
        license=_license(document.get("license")),
        size_bytes=_count(dist.get("unpackedSize")),
        file_count=_count(dist.get("fileCount")),
        install_scripts=tuple(_text(script) for script in declared),
        dependencies=_names(_object(document.get("dependencies"))),
        programs=_names(programs) if isinstance(programs, dict) else (name.rpartition("/")[2],) if programs else (),
        warnings=(f"its authors say of this version: {_text(document['deprecated'])}",)
        if document.get("deprecated")
        else (),
    )


def add_npm_sizes(facts: Facts, output: str) -> Facts:
    """Return the facts with the sizes in the output of ``npm pack --json``; unchanged if the output is not JSON."""
    try:
        document = json.loads(output or "null")
    except (ValueError, RecursionError):
        return facts
    first = _object(document[0]) if isinstance(document, list) and document else {}
    size, count = _count(first.get("unpackedSize")), _count(first.get("entryCount"))
    return replace(facts, size_bytes=size, file_count=count)


def hash_files(files: Mapping[str, str]) -> str:
    """Return one hash of files by name."""
    return f"sha256-{digest(dict(files))}"


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value[:TEXT_CHARS] if isinstance(value, str) else ""


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 53 else 0


def _names(dependencies: Mapping[str, object]) -> tuple[str, ...]:
    names = sorted(dependencies)
    more = (f"and {len(names) - MAX_LISTED} more",) if len(names) > MAX_LISTED else ()
    return (*(_text(name) for name in names[:MAX_LISTED]), *more)


def _license(value: object) -> str:
    """Return the license as text: older packages declare an object, or a list of them."""
    if isinstance(value, list):
        return ", ".join(filter(None, map(_license, value)))[:TEXT_CHARS]
    return _text(_object(value).get("type")) if isinstance(value, dict) else _text(value)
