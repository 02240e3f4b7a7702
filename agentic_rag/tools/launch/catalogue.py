"""The launch catalogue: which whole command lines may run, and the match of a user's entry against them.

Owns the form of an entry, the typed slots of its argument template, and the decision. Pure: reads no file and asks no
registry. The other modules of `launch` check the target of a path, again at each start.

Whole lines are allowed, never program names: ``npx``, ``node``, ``python`` and the like run any program that their
arguments name. A slot is data: one argument, never an option, never a program.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from agentic_rag.tools.entries.entry import StdioTarget, Value

SlotKind = Literal["literal", "path", "text", "url"]

SLOT_CHARS = 4096
"""A longer slot value is refused."""

MAX_ARGUMENTS = 64

_NPM = re.compile(r"(?P<name>(?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*)(?:@(?P<version>[^@\s]+))?")
_PYPI = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:(?:==|@)(?P<version>[^=@\s]+))?")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")
_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
_YES = frozenset({"-y", "--yes"})
Registry = Literal["npm", "pypi", "mcpb"]
"""The source of a package; ``mcpb``: a proposed bundle."""
_RUNNERS: Mapping[str, Registry] = {"npx": "npm", "uvx": "pypi", "mcpb": "mcpb"}


@dataclass(frozen=True, slots=True)
class Package:
    """A package at one exact version, and the program of it that runs."""

    registry: Registry
    name: str
    version: str
    program: str = ""
    """Empty: the only program of the package, or the one with the package's name."""
    integrity: str = ""
    """Integrity of the approved content, as in `Facts.integrity`. Empty accepts any content of this version.
    """

    def __str__(self) -> str:
        return f"{self.name}{'==' if self.registry == 'pypi' else '@'}{self.version}"

    @property
    def line(self) -> tuple[str, ...]:
        """The command by which people know the package."""
        runner = {"npm": ("npx", "-y"), "pypi": ("uvx",), "mcpb": ("mcpb",)}[self.registry]
        return (*runner, str(self))


@dataclass(frozen=True, slots=True)
class Program:
    """An executable file, and every file its line names, each with the approved SHA-256.

    ``command`` is the program's name in a user's line. ``names`` maps names of files in the operator's folder, as a
    line uses them, to their paths.
    """

    path: str
    command: str
    files: Mapping[str, str]
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def line(self) -> tuple[str, ...]:
        """The command by which people know the program."""
        return (self.command,)


@dataclass(frozen=True, slots=True)
class ArgumentPart:
    """One element of an argument template.

    ``many``: takes all arguments that follow. ``needed``: at least one is required.
    """

    kind: SlotKind
    literal: str = ""
    needed: bool = True
    many: bool = False


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One command line that may run.

    ``options``: option → kind of its value, ``literal`` for a switch; each at most once, in any order.
    ``env``: names a user may set → kind.
    ``fixed``: variables the entry sets itself (``{home}`` is the server's private folder); a user's value for one of
    them is dropped, and listed as a change.
    ``write``: folders of the workspace are writable.
    ``folders``: further folders the program may read.
    ``read_only``, ``idempotent``: names of tools, as on the server, whose hint is trusted.
    ``stateful``: the program keeps state in its private folder; a user's entry can override this.
    ``limits``: rlimits that differ from the usual ones.
    """

    id: str
    runs: Package | Program
    args: tuple[ArgumentPart, ...] = ()
    options: Mapping[str, SlotKind] = field(default_factory=dict)
    env: Mapping[str, SlotKind] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    network: bool = False
    write: bool = False
    folders: tuple[str, ...] = ()
    read_only: frozenset[str] = frozenset()
    idempotent: frozenset[str] = frozenset()
    stateful: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlotValue:
    """One argument, or the value of a variable: ``prefix`` (``--option=``) and text of one kind."""

    kind: SlotKind
    text: str = field(repr=False)
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class CatalogueMatch:
    """The catalogue's match for a user's line. ``args`` follow the program; ``changes`` are sentences for the admin."""

    entry: CatalogueEntry
    args: tuple[SlotValue, ...]
    env: Mapping[str, SlotValue]
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LineRefusal:
    """The reason why no entry matched. ``place`` continues the entry's path.

    ``final``: allowing the line unchanged is no remedy; the reason names one.
    """

    place: str
    reason: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class RequestedProgram:
    """The program that a line asks to run: a package by its name, or a program by its path."""

    registry: Registry | Literal[""]
    name: str
    version: str
    args: tuple[str, ...]


def match_line(
    entries: Sequence[CatalogueEntry], command: str, args: Sequence[str], env: Mapping[str, str]
) -> CatalogueMatch | LineRefusal:
    """Return the match of a line, or the reason why no entry allows it."""
    requested = read_line(command, args)
    if isinstance(requested, LineRefusal):
        return requested
    if len(args) > MAX_ARGUMENTS:
        return LineRefusal("args", f"at most {MAX_ARGUMENTS} arguments are taken.")
    first: LineRefusal | None = None
    for entry in entries:
        if not _same_program(entry, requested):
            continue
        result = _match_entry(entry, requested, env)
        if isinstance(result, CatalogueMatch):
            return result
        # Several entries may be for one program. The first one is the usual one, so its reason is shown.
        first = first or result
    return first or LineRefusal("command", _unknown(requested, entries))


def pin_version(entry: CatalogueEntry, target: StdioTarget[Value]) -> StdioTarget[Value]:
    """Return a matched line for storage: exact version, without variables the entry sets, placeholders unexpanded.

    ``target``: the line as the admin wrote it.
    """
    args = target.args
    variables = {name: value for name, value in target.env.items() if name not in entry.fixed}
    if isinstance(entry.runs, Package):
        own = 2 if args[0] in _YES and entry.runs.registry == "npm" else 1
        args = (*entry.runs.line[1:], *args[own:])
    return StdioTarget(target.command, args, variables)


def read_line(command: str, args: Sequence[str]) -> RequestedProgram | LineRefusal:
    """Return the program that a line would run. ``npx`` and ``uvx`` take a package and no options of their own."""
    registry = _RUNNERS.get(command)
    if registry is None:
        return RequestedProgram("", command, "", tuple(args))
    rest = list(args)
    if registry == "npm" and rest and rest[0] in _YES:
        rest.pop(0)
    if not rest:
        return LineRefusal("args", f"{command} needs a package to run.", final=True)
    if rest[0].startswith("-"):
        return LineRefusal(
            "args.0", f"the option {rest[0]!r} of {command} is not taken: it runs any program.", final=True
        )
    match = (_PYPI if registry == "pypi" else _NPM).fullmatch(rest[0])
    if match is None:
        return LineRefusal(
            "args", f"{rest[0]!r} is no plain package with an exact version (no URL, path, range).", final=True
        )
    name, version = match["name"], match["version"] or ""
    if version == "latest":
        version = ""
    if version and not _VERSION.fullmatch(version):
        return LineRefusal("args", f"{version!r} is no exact version.", final=True)
    return RequestedProgram(registry, normal_name(registry, name), version, tuple(rest[1:]))


def normal_name(registry: str, name: str) -> str:
    """Return the one spelling of a package's name (PyPI treats ``-_.`` and case alike: PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower() if registry == "pypi" else name


def slot_problem(kind: SlotKind, text: str) -> str:
    """Return why a text cannot fill a slot, or empty text if it can."""
    if not text:
        return "is empty"
    if len(text) > SLOT_CHARS:
        return f"is longer than {SLOT_CHARS} characters"
    if _CONTROL.search(text) or any(0xD800 <= ord(char) < 0xE000 for char in text):
        return "holds a line end or another control character"
    # A slot is data. As an option, it could make the program run another one.
    if kind != "literal" and text.startswith("-"):
        return "begins with '-', as an option does"
    if kind == "path" and ".." in re.split(r"[/\\]", text):
        return "holds '..'"
    if kind == "url":
        try:
            parts = urlsplit(text)
            fine = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            fine = False
        return "" if fine else "is no http or https address"
    return ""


def _same_program(entry: CatalogueEntry, requested: RequestedProgram) -> bool:
    if isinstance(entry.runs, Program):
        return requested.registry == "" and requested.name in (entry.runs.command, entry.runs.path)
    return entry.runs.registry == requested.registry and entry.runs.name == requested.name


def _match_entry(
    entry: CatalogueEntry, requested: RequestedProgram, env: Mapping[str, str]
) -> CatalogueMatch | LineRefusal:
    changes: list[str] = []
    if isinstance(entry.runs, Package):
        if requested.version and requested.version != entry.runs.version:
            return LineRefusal("args", f"version {requested.version} was asked for; {entry.runs} is allowed.")
        if not requested.version:
            changes.append(f"args: {entry.runs.name!r} became {str(entry.runs)!r}")
    arguments = _match_arguments(entry, requested.args)
    if isinstance(arguments, LineRefusal):
        return arguments
    values: dict[str, SlotValue] = {}
    for name, text in env.items():
        if name in entry.fixed:
            changes.append(f"env.{name}: left out, {entry.id!r} sets it itself")
            continue
        kind = entry.env.get(name)
        if kind is None:
            names = ", ".join(sorted(entry.env)) or "none"
            return LineRefusal(
                f"env.{name}", f"{entry.id!r} does not take this variable; it takes: {names}.", final=True
            )
        problem = slot_problem(kind, text) if kind != "text" or "\x00" in text else ""  # a key may have several lines
        if problem:
            return LineRefusal(f"env.{name}", f"the value {problem}.", final=True)
        values[name] = SlotValue(kind, text)
    return CatalogueMatch(entry, arguments, values, tuple(changes))


def _match_arguments(entry: CatalogueEntry, args: Sequence[str]) -> tuple[SlotValue, ...] | LineRefusal:
    """Walk the arguments along the template; options may stand anywhere between its parts."""
    slots: list[SlotValue] = []
    parts = list(entry.args)
    queue = list(args)
    options = dict(entry.options)
    repeated = False  # whether a part that takes many arguments has at least one
    while queue:
        text = queue.pop(0)
        # Taken out, so that an option that is given twice does not match again.
        kind = options.pop(text.partition("=")[0], None)
        if kind is not None:
            values = _option(entry, kind, text, queue)
        elif parts:
            values = _positional(entry, parts[0], text)
            repeated = parts[0].many
            if not parts[0].many:
                parts.pop(0)
        else:
            values = _unfit(entry, text)
        if isinstance(values, LineRefusal):
            return values
        slots += values
    if any(part.needed and not (part.many and repeated) for part in parts):
        return LineRefusal("args", f"an argument is missing; {entry.id!r} takes: {template(entry)}", final=True)
    return tuple(slots)


def _positional(entry: CatalogueEntry, part: ArgumentPart, text: str) -> list[SlotValue] | LineRefusal:
    if part.kind == "literal":
        return [SlotValue("literal", text)] if text == part.literal else _unfit(entry, text)
    problem = slot_problem(part.kind, text)
    if problem:
        return LineRefusal("args", f"{text!r} {problem}; {entry.id!r} takes: {template(entry)}", final=True)
    return [SlotValue(part.kind, text)]


def _option(entry: CatalogueEntry, kind: SlotKind, text: str, queue: list[str]) -> list[SlotValue] | LineRefusal:
    """Take a switch, ``--option=value``, or ``--option`` and the next argument."""
    name, equals, value = text.partition("=")
    if kind == "literal":
        return _unfit(entry, text) if equals else [SlotValue("literal", name)]
    if not equals and not queue:
        return _unfit(entry, text)
    value = value if equals else queue.pop(0)
    problem = slot_problem(kind, value)
    if problem:
        return LineRefusal("args", f"{name!r}: the value {problem}.", final=True)
    return [SlotValue(kind, value, f"{name}=")] if equals else [SlotValue("literal", name), SlotValue(kind, value)]


def _unfit(entry: CatalogueEntry, text: str) -> LineRefusal:
    return LineRefusal("args", f"{text!r} does not fit; {entry.id!r} takes: {template(entry)}", final=True)


def template(entry: CatalogueEntry) -> str:
    """Return the argument template in readable form."""
    words = [f"[{name}{'' if kind == 'literal' else f' {{{kind}}}'}]" for name, kind in entry.options.items()]
    for part in entry.args:
        word = part.literal if part.kind == "literal" else f"{{{part.kind}}}"
        word += "..." if part.many else ""
        words.append(word if part.needed else f"[{word}]")
    return " ".join(words) or "no arguments"


def _unknown(requested: RequestedProgram, entries: Sequence[CatalogueEntry]) -> str:
    known_ids = ", ".join(sorted({entry.id for entry in entries})) or "none"
    if requested.registry:
        subject = f"the {requested.registry} package {requested.name!r}"
    else:
        subject = f"the line {shlex.join([requested.name, *requested.args])[:200]!r}"
    return f"{subject} matches nothing in the launch catalogue (entries: {known_ids})."
