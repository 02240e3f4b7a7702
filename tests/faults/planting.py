"""Plant links, pipes and swaps at every name that the server uses below a workspace, and check the data outside.

A `Trial` is one name, one planted object, and all operations of a server on roles, memories, prompt components,
documents and the workspace itself. ``outside`` holds data that must be neither read nor changed: another tenant's
workspace and a key. For a swap, a thread alternates file and link at the name while the operations run.
"""

import hashlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event, Thread

from agentic_rag.base.errors import AgenticRagError
from agentic_rag.documents.files import open_document, place, stamp_of
from agentic_rag.domains.components import ComponentFiles
from agentic_rag.domains.workspaces import make_workspace, remove_workspace
from agentic_rag.roles.memories import MemoryOwner
from agentic_rag.roles.roles import remove_role, texts_of
from mcp_servers.promptx.builtin import BUILTIN_ROLES
from mcp_servers.promptx.errors import PromptXError
from mcp_servers.promptx.ledger import has_memory
from mcp_servers.promptx.memory import Memory, memory_folder
from mcp_servers.promptx.new_engrams import NewEngram
from mcp_servers.promptx.nuwa import template
from mcp_servers.promptx.roles import RoleLibrary
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.safe_files import Folder

SECRET = "swordfish opens everything"
ROLE, USER, NOW = "clerk", "anna", 1_790_000_000_000
MEMORY = f".promptx/cognition.user/{USER}/{ROLE}"
ROLES = f".promptx/resource/role/{ROLE}"
NAMES = (
    *("documents", "documents/a.md", "documents/sub", "documents/sub/b.md", "prompt", "prompt/10-a.md", "files"),
    *(".promptx", ".promptx/resource", ".promptx/resource/role", ROLES, f"{ROLES}/{ROLE}.role.md", f"{ROLES}/thought"),
    *(f"{ROLES}/thought/{ROLE}-thought.thought.md", f"{ROLES}/execution/{ROLE}-work.execution.md"),
    *(".promptx/cognition.user", f".promptx/cognition.user/{USER}", MEMORY, f"{MEMORY}/engrams.db"),
    *(f"{MEMORY}/engrams.db-wal", f"{MEMORY}/engrams.db-shm", f"{MEMORY}/engrams.db-journal"),
    *(f"{MEMORY}/network.json", f"{MEMORY}/network.json.tmp", f"{MEMORY}/state.json"),
    *(f"{MEMORY}/.engrams.lock", f"{MEMORY}/.network.lock"),
)
"""Every name below a workspace that the server itself uses."""
KINDS = ("link", "folder link", "dangling", "hard link", "pipe", "socket", "folder", "file", "swap", "folder swap")
SECONDS = 30.0
"""Time limit for all operations of one trial. Waiting for a pipe would take forever."""


@dataclass(frozen=True)
class Trial:
    name: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.name}"


@dataclass(frozen=True)
class Ground:
    """A tenant's workspace, and the data outside it."""

    workspace: Path
    outside: Path

    @property
    def key(self) -> Path:
        return self.outside / "key.md"

    @property
    def theirs(self) -> Path:
        return self.outside / "theirs"


def every_trial() -> list[Trial]:
    return [Trial(name, kind) for name in NAMES for kind in KINDS]


def choose_trials(count: int, seed: int) -> list[Trial]:
    """Return ``count`` trials that include every name and every kind."""
    draw = Random(seed)
    kinds = [*KINDS] * (len(NAMES) // len(KINDS) + 1)
    draw.shuffle(kinds)
    first = [Trial(name, kind) for name, kind in zip(NAMES, kinds, strict=False)]
    return [*first, *draw.sample([trial for trial in every_trial() if trial not in first], max(0, count - len(first)))]


def run(trial: Trial, folder: Path) -> list[str]:
    """Plant, run all operations, and return the problems: changes outside, reads from outside, and hangs."""
    ground = make_ground(folder)
    before = state_of(ground.outside)
    texts: list[str] = []
    with plant(trial, ground):
        work = Thread(target=lambda: texts.extend(do_everything(ground, folder)), daemon=True)
        work.start()
        work.join(SECONDS)
    problems = [f"{trial}: hung"] if work.is_alive() else []
    if state_of(ground.outside) != before:
        problems.append(f"{trial}: changed outside")
    own_secret = trial.kind == "file"  # then the workspace itself contains the text
    problems += [f"{trial}: read outside" for text in texts if SECRET in text and not own_secret][:1]
    return problems


def make_ground(folder: Path) -> Ground:
    """Create two full workspaces. The other tenant's one contains the secret everywhere."""
    ground = Ground(folder / "workspaces" / "mine", folder / "outside")
    fill(ground.workspace, "mine")
    fill(ground.theirs, SECRET)
    ground.key.write_text(f"<role><personality>{SECRET}</personality></role>")
    return ground


def fill(workspace: Path, text: str) -> None:
    make_workspace(workspace)
    (workspace / "documents" / "sub").mkdir()
    for name in ("documents/a.md", "documents/sub/b.md", "prompt/10-a.md", "files/a.md"):
        (workspace / name).write_text(f"# Title\n\n{text}\n")
    RoleLibrary(workspace).write(ROLE, template(ROLE))
    memory = Memory(memory_folder(workspace, "user", USER, ROLE))
    memory.remember([NewEngram(text, "one two", 0.5, "ATOMIC")], NOW)
    memory.save()
    memory.recall("one", "balanced", NOW)
    memory.close()


def state_of(folder: Path) -> dict[str, str]:
    """Return the content of a folder with hashes and modes, without a database's lock files, which come and go."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


def target_of(trial: Trial, ground: Ground) -> Path:
    """Return the target of a link at the name: the same name of the other tenant, or the key."""
    counterpart = ground.theirs / trial.name
    if trial.kind in ("folder link", "folder swap"):
        return counterpart if counterpart.is_dir() else ground.theirs
    return counterpart if counterpart.is_file() and trial.name.endswith(("engrams.db", ".md")) else ground.key


@contextmanager
def plant(trial: Trial, ground: Ground) -> Iterator[None]:
    path = ground.workspace / trial.name
    if trial.kind.endswith("swap"):
        with swap_repeatedly(path, target_of(trial, ground)):
            yield
        return
    clear(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    match trial.kind:
        case "link" | "folder link":
            path.symlink_to(target_of(trial, ground))
        case "dangling":
            path.symlink_to(ground.outside / "made")
        case "hard link":
            os.link(target_of(Trial(trial.name, "link"), ground), path)
        case "pipe":
            os.mkfifo(path)
        case "socket":
            stand_in_for_socket(path)
        case "folder":
            (path / "inner").mkdir(parents=True)
        case _:
            path.write_text(SECRET)
    yield


def stand_in_for_socket(path: Path) -> None:
    """Create a socket at a path. Its address may be too long, so bind it elsewhere and move it."""
    short = Path("/tmp") / f"s{os.getpid()}-{id(path):x}"
    with socket.socket(socket.AF_UNIX) as server_socket:
        server_socket.bind(str(short))
    shutil.move(short, path)


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def swap_repeatedly(path: Path, target: Path) -> Iterator[None]:
    """Alternate the object with a link, without pause, until the block ends."""
    stop = Event()
    aside, link = path.with_name(f".aside-{path.name}"), path.with_name(f".link-{path.name}")

    def exchange() -> None:
        while not stop.is_set():
            with suppress(OSError):
                link.symlink_to(target)
            for source, end in ((path, aside), (link, path), (path, link), (aside, path)):
                with suppress(OSError):
                    source.rename(end)

    thread = Thread(target=exchange, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def do_everything(ground: Ground, folder: Path) -> Iterator[str]:
    """Run all operations of the server below a workspace. Yield every text that a user or a model would get."""
    for deed in (use_roles, use_memory, use_components, use_documents, use_workspace):
        yield from deed(ground, folder)


def attempt(work: Callable[[], object]) -> str:
    """Return the answer, or the text of the refusal. Neither may contain data from outside."""
    try:
        return repr(work())
    except (AgenticRagError, PromptXError, DocumentError, OSError) as exc:
        return str(exc)


def use_roles(ground: Ground, folder: Path) -> Iterator[str]:
    library = RoleLibrary(ground.workspace)
    yield attempt(library.list)
    yield attempt(lambda: library.activate(ROLE))
    yield attempt(library.check)
    yield attempt(lambda: texts_of(ground.workspace, BUILTIN_ROLES, ROLE))
    yield attempt(lambda: library.write(ROLE, template(ROLE)))
    yield attempt(lambda: library.write("another", template("another")))
    yield attempt(lambda: library.activate(ROLE))
    yield attempt(lambda: remove_role(ground.workspace, BUILTIN_ROLES, ROLE))


def use_memory(ground: Ground, folder: Path) -> Iterator[str]:
    folder_path = memory_folder(ground.workspace, "user", USER, ROLE)
    yield attempt(lambda: has_memory(folder_path))
    yield attempt(MemoryOwner(ground.workspace, "user", USER).roles)
    memory = Memory(folder_path)
    for cue in ("one", None):
        yield attempt(lambda cue=cue: memory.recall(cue, "balanced", NOW))  # type: ignore[misc]
    yield attempt(lambda: memory.remember([NewEngram("more", "two three", 0.5, "ATOMIC")], NOW))
    yield attempt(memory.save)
    yield attempt(memory.browse)
    yield attempt(memory.frequencies)
    yield attempt(lambda: memory.delete([engram.id for engram in memory.export()]))
    yield attempt(memory.close)


def use_components(ground: Ground, folder: Path) -> Iterator[str]:
    files = ComponentFiles()
    for _ in range(2):
        yield attempt(lambda: files.read(ground.workspace))


def use_documents(ground: Ground, folder: Path) -> Iterator[str]:
    documents = Folder(ground.workspace).at("documents")
    yield attempt(lambda: list(documents.walk(hidden=False)))
    for number, name in enumerate(("a.md", "sub/b.md", "c.md")):
        yield attempt(lambda name=name: documents.hash(name))  # type: ignore[misc]
        yield attempt(lambda name=name: stamp_of(documents, name))  # type: ignore[misc]
        yield attempt(lambda name=name: read_whole(documents, name))  # type: ignore[misc]
        incoming = folder / f"incoming-{number}"
        incoming.write_text("uploaded")
        parent, _, last = name.rpartition("/")
        yield attempt(
            lambda incoming=incoming, parent=parent, last=last, number=number: place(  # type: ignore[misc]
                incoming, documents.at(parent), last, replace=number == 1
            )
        )
        yield attempt(lambda name=name: documents.remove(name))  # type: ignore[misc]


def read_whole(documents: Folder, name: str) -> bytes:
    with open_document(documents, name) as file:
        return file.read()


def use_workspace(ground: Ground, folder: Path) -> Iterator[str]:
    yield attempt(lambda: make_workspace(ground.workspace))
    yield attempt(lambda: remove_workspace(ground.workspace.parent, ground.workspace))
