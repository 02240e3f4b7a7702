"""Requests for lines that the launch catalogue does not have: which are possible, and the result of an approval. Pure.

Owns the rules about which lines can be bound to a hash, the texts for the others, and the way from an approved request
to a catalogue entry. Reads no file and asks no registry: `local_programs` and `packages` do.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentic_rag.base.errors import CatalogueProblem, InvalidInput
from agentic_rag.tools.entries.entry import digest
from agentic_rag.tools.entries.placeholders import NAME, find_placeholders
from agentic_rag.tools.launch.catalogue import (
    MAX_ARGUMENTS,
    CatalogueEntry,
    LineRefusal,
    Package,
    match_line,
    read_line,
    slot_problem,
)
from agentic_rag.tools.launch.catalogue_file import entries_of
from agentic_rag.tools.launch.environment import SEARCH_PATH, steers_a_program
from agentic_rag.tools.launch.facts import Facts

LOCAL = "mcp/local"
"""The operator's folder for programs that no registry has, inside the data folder."""

SLOTS = ("{path:workspace}", "{text}", "{url}")

_INTERPRETERS = frozenset({"node", "nodejs", "python", "deno", "bun", "ruby", "perl", "php", "lua", "tclsh", "rscript"})
"""Programs that run the script in their arguments, without the digits of a version."""
_RUN_ANYTHING = """
    sh bash dash zsh ksh csh tcsh fish ash busybox cmd powershell pwsh env sudo su doas xargs nohup setsid timeout nice
    stdbuf script expect screen tmux ssh find awk gawk mawk make eval exec docker podman nerdctl kubectl npm pnpm yarn
    npx bunx pipx uv uvx pip cargo go java bwrap unshare nsenter chroot systemd-run strace gdb time watch parallel
    """
"""Programs whose arguments are programs."""
_SCRIPT = re.compile(r"[^-{].{0,400}\.(?:py|m?js|cjs|ts|rb|pl|php|lua)")
_PLACEHOLDER = re.compile(r"\$\{[^{}]*\}")
_STAND_IN = "https://example.com/x"
"""A value that fits every slot."""
_WITH_VALUE = re.compile(r"(--?[A-Za-z0-9][\w-]*=)(.*)", re.DOTALL)
_WHOLE_PLACEHOLDER = re.compile(r"\$\{" + NAME + r"(?::-[^{}]*)?\}")


@dataclass(frozen=True, slots=True)
class PackageLine:
    """A line that runs a package; without a version it is the newest one."""

    package: Package
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProgramLine:
    """A line that runs a program of this machine. ``scripts``: arguments that must be files of the operator's folder.

    ``args``: all arguments; others that name such a file are bound to it, too.
    """

    program: str
    args: tuple[str, ...]
    scripts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchGrant:
    """The rights that an operator grants with an approval.

    ``args``: the template of the arguments after the package or the program. Slots may stand alone or as the value of
    an option (``--root={path:workspace}``). ``write``: folders in slots are writable.

    ``read_only``: tools, by the server's names, whose hint is trusted.
    """

    args: tuple[str, ...]
    network: bool = False
    write: bool = False
    read_only: tuple[str, ...] = ()


def plan_line(command: str, args: Sequence[str], env: Sequence[str]) -> PackageLine | ProgramLine | LineRefusal:
    """Return the package or program to bind before a line is allowed, or a refusal. ``env``: names of its variables."""
    for name in env:
        if steers_a_program(name):
            return LineRefusal(f"env.{name}", "this variable can make a program load or run another one; remove it.")
    if len(args) > MAX_ARGUMENTS:
        return LineRefusal("args", f"at most {MAX_ARGUMENTS} arguments are taken.")
    for index, text in enumerate(args):
        problem = slot_problem("literal", text)
        if problem:
            return LineRefusal(f"args.{index}", f"an argument that {problem} cannot be allowed.")
    requested = read_line(command, args)
    if isinstance(requested, LineRefusal):
        return requested
    if requested.registry:
        return PackageLine(Package(requested.registry, requested.name, requested.version), requested.args)
    return _plan_program(command, tuple(args))


def _plan_program(command: str, args: tuple[str, ...]) -> ProgramLine | LineRefusal:
    folder, _, base = command.rpartition("/")
    if folder and folder not in SEARCH_PATH:
        reason = f"{command!r} is a path. Give the program's name only, and the script as its first argument"
        return LineRefusal(
            "command", f"{reason}: node ./server.js, where server.js lies in the operator's folder {LOCAL}."
        )
    name = re.sub(r"(?:[\d.]+|\.exe)$", "", base.lower())
    if name in _RUN_ANYTHING.split():
        reason = f"{base} runs any program that its arguments name, so it can't be allowed."
        return LineRefusal("command", f"{reason} Name the server itself: a package (npx, uvx), or node ./server.js.")
    if name not in _INTERPRETERS:
        return ProgramLine(command, args)
    if not args or args[0].startswith("-"):
        first_word = f"the option {args[0]!r}" if args else "nothing"
        reason = f"{base} is given {first_word} where its script has to stand; options of {base} run any program."
        return LineRefusal("args.0", f"{reason} Write: {base} ./server.js, where server.js lies in {LOCAL}.")
    return ProgramLine(command, args, (args[0],))


def scripts_of(command: str, args: Sequence[str]) -> frozenset[str]:
    """Return the arguments of an interpreter that must be files: the first one, and each that is named as a script."""
    name = re.sub(r"(?:[\d.]+|\.exe)$", "", command.rpartition("/")[2].lower())
    if name not in _INTERPRETERS:
        return frozenset()
    first = {text for text in args[:1] if not text.startswith(("-", "{"))}
    return frozenset(first | {text for text in args if _SCRIPT.fullmatch(text)})


def local_name(text: str) -> str | None:
    """Return the name in the operator's folder that an argument may mean, or None if it cannot mean one.

    ``./mcp-servers/x.js`` and ``mcp-servers/x.js`` are the same name. ``..``, absolute and unusual paths are none.
    """
    if not text or text.startswith(("/", "~", "-")) or "\\" in text or "\x00" in text or ":" in text:
        return None
    parts = [part for part in text.split("/") if part not in ("", ".")]
    return "/".join(parts) if parts and ".." not in parts else None


def propose_template(args: Sequence[str], kinds: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the proposed template for arguments: unchanged, except for slots in place of the domain's values.

    ``kinds``: the slot of each placeholder that is known to be more than text.
    """
    proposed = []
    for text in args:
        option, placeholder = _WITH_VALUE.fullmatch(text), text
        if option is not None:
            placeholder = option[2]
        if _WHOLE_PLACEHOLDER.fullmatch(placeholder):
            name = next(find_placeholders(placeholder)).name
            text = (option[1] if option else "") + (kinds or {}).get(name, "{text}")
        proposed.append(text)
    return tuple(proposed)


def line_hash(server: str, command: str, args: Sequence[str], env: Sequence[str]) -> str:
    """Return the hash that identifies equal requests of a domain."""
    return digest([server, command, list(args), sorted(env)])


def fingerprint_of(command: str, args: Sequence[str], env: Sequence[str], facts: Facts) -> str:
    """Return the fingerprint of the facts that an operator reviews: an approval covers exactly these."""
    content = [facts.registry, facts.name, facts.version, facts.integrity, dict(facts.files), dict(facts.fixed)]
    return digest([command, list(args), sorted(env), content, list(facts.install_scripts)])


def make_table(
    ident: str, command: str, env: Sequence[str], facts: Facts, grant: LaunchGrant, places: Mapping[str, str]
) -> dict[str, Any]:
    """Return the catalogue's table of an approved line.

    Args:
        command: the program's name in entries.
        places: absolute path of each of the ``facts.files``; empty for a package.

    Raises:
        InvalidInput: A catalogue cannot hold the grant.
    """
    table: dict[str, Any]
    if facts.registry:
        separator = "==" if facts.registry == "pypi" else "@"
        table = {
            facts.registry: f"{facts.name}{separator}{facts.version}",
            "integrity": facts.integrity,
            "set": dict(facts.fixed),
        }
    else:
        program = places[facts.name]
        files = {places[name]: sha for name, sha in facts.files.items() if name != facts.name}
        table = {"executable": program, "command": command, "sha256": facts.files[facts.name], "files": files}
        table["names"] = {name: places[name] for name in facts.files if name != facts.name}
    options = [
        option_match
        for text in grant.args
        if (option_match := _WITH_VALUE.fullmatch(text)) and option_match[2] in SLOTS
    ]
    table |= {
        "id": ident,
        "args": [text for text in grant.args if not any(text == option[0] for option in options)],
        "options": {option[1].removesuffix("="): option[2] for option in options},
        "env": dict.fromkeys(env, "{text}"),
        "network": grant.network,
        "write": grant.write,
        "read_only": list(grant.read_only),
    }
    entry_of(table)
    return table


def entry_of(table: Mapping[str, Any]) -> CatalogueEntry:
    """Return the catalogue entry of a table.

    Raises:
        InvalidInput: The table is invalid.
    """
    try:
        return entries_of({"entry": [dict(table)]}, "grant")[0]
    except CatalogueProblem as exc:
        raise InvalidInput("args", str(exc)) from exc


def check_covers(entry: CatalogueEntry, command: str, args: Sequence[str], env: Sequence[str]) -> None:
    """Refuse a grant under which the requested line would still not run.

    Raises:
        InvalidInput: Names the part that does not fit.
    """
    filled = [_PLACEHOLDER.sub(_STAND_IN, text) for text in args]
    outcome = match_line([entry], command, filled, dict.fromkeys(env, "x"))
    if isinstance(outcome, LineRefusal):
        raise InvalidInput("args", f"the line that was asked for would not run: {outcome.reason}")
