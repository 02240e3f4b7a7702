"""The operator's folder for programs that no registry has: ``{data}/mcp/local``.

Owns the names that a line may use, and the files that an approval binds. A file directly in the folder is bound alone.
A file in a subfolder is bound together with the whole subfolder, since it may import its neighbours. Links are never
followed. Blocks.
"""

from dataclasses import dataclass
from pathlib import Path

from agentic_rag.base.errors import CommandNotAllowed
from agentic_rag.tools.launch.allowed import file_hash, find_program, list_local_files
from agentic_rag.tools.launch.facts import Facts, hash_files
from agentic_rag.tools.launch.requests import LOCAL, ProgramLine, local_name
from mcp_servers.safe_files import Folder


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """The program that a line would run. ``places``: absolute path of each of ``facts.files``."""

    facts: Facts
    places: dict[str, str]


class LocalPrograms:
    """The operator's folder at ``folder``. People who may write there decide which programs run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, line: ProgramLine, path: str) -> LocalProgram:
        """Return the program of a line, each file with its present hash. ``path``: place of the entry, for messages.

        Raises:
            CommandNotAllowed, InvalidInput: A file is missing or cannot be bound; the text tells how to correct it.
        """
        program = find_program(line.program, f"{path}.command")
        names: dict[str, str] = {}
        for index, text in enumerate(line.args):
            name = local_name(text)
            if name is not None and self._stands(name):
                names |= list_local_files(self._folder, name, f"{path}.args.{index}")
            elif text in line.scripts:
                raise CommandNotAllowed(f"{path}.args.{index}", *_missing(text, name))
        real = str(Path(program).resolve())
        hashes = {program: file_hash(real), **{name: file_hash(place) for name, place in names.items()}}
        size = sum(Path(place).stat().st_size for place in names.values())
        facts = Facts(
            name=program,
            integrity=hash_files(hashes),
            size_bytes=size,
            file_count=len(hashes),
            files=hashes,
            programs=line.scripts,
        )
        return LocalProgram(facts, {program: real, **names})

    def _stands(self, name: str) -> bool:
        try:
            return Folder(self._folder.resolve()).is_file(name)
        except OSError:
            return False


def _missing(text: str, name: str | None) -> tuple[str, str]:
    if name is None:
        reason = f"{text!r} leads out of the operator's folder {LOCAL}."
        return reason, f"Scripts lie in it and are named from there: ./{text.rpartition('/')[2] or 'server.js'}"
    reason = f"there is no {name!r} in the operator's folder {LOCAL}, so that the line can be bound to no file."
    return reason, "Ask the operator to put it there; then request the line again."
