"""Watched workspaces: every visible change ends the version that was read before; limits, threads, and the end."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_rag.access.users import User
from agentic_rag.base.threads import PLACES
from agentic_rag.domains.components import ComponentFiles
from agentic_rag.domains.watched_workspaces import (
    LOOK_ANEW,
    MOST_FOLDERS,
    MOST_WORKSPACES,
    SnapshotCache,
    WatchedWorkspaces,
    WorkspaceSnapshot,
    WorkspaceVersion,
)
from agentic_rag.domains.workspaces import find_misplaced
from agentic_rag.testing.steps import say
from mcp_servers.promptx.roles import RoleLibrary
from mcp_servers.promptx.skills import SkillLibrary
from tests.server.rig import Rig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="notes of changes are Linux'")

PATIENT = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
ROLES = ("clerk", "aide")
FILES = (
    "prompt/a.md",
    "prompt/b.md",
    "skills/x/SKILL.md",
    "skills/y/SKILL.md",
    ".promptx/resource/clerk.role.md",
    ".promptx/resource/deep/er/clerk.role.md",
    ".promptx/resource/aide.role.md",
)
FOLDERS = (
    *("prompt", "skills", "skills/x", "skills/y", ".promptx", ".promptx/resource", ".promptx/resource/deep"),
    *(".promptx/resource/deep/er", "documents", "files"),
)


def text_for(path: Path, number: int) -> str:
    """Return a text for a file of that name. Another number gives another text."""
    if path.name.endswith(".role.md"):
        return f"<role><personality>Number {number}.</personality></role>"
    if path.name == "SKILL.md":
        return f"---\nname: {path.parent.name}\ndescription: Number {number}.\n---\n"
    return f"Number {number}."


class Place:
    """A workspace and the built-in roles; the paths of both lead through a link."""

    def __init__(self, base: Path) -> None:
        self.base = base.resolve()
        self.way = self.base / "way"
        self.roles, self.workspace = self.way / "roles", self.way / "workspaces" / "law"
        (self.base / "real" / "roles").mkdir(parents=True)
        self.way.symlink_to("real")
        self.write(self.roles / "aide.role.md", 0)
        self.fill(self.workspace, 0)

    def fill(self, workspace: Path, number: int) -> None:
        for name in FILES[::2]:
            self.write(workspace / name, number)
        for name in FOLDERS:
            (workspace / name).mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, number: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text_for(path, number))

    def look(self) -> object:
        library = RoleLibrary(self.workspace, self.roles)
        return (
            library.summaries(ROLES),
            [library.hash(role) for role in library.ids()],
            ComponentFiles().read(self.workspace),
            SkillLibrary(self.workspace).summaries(),
            find_misplaced(self.workspace),
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@contextmanager
def watch_workspaces(roles: Path) -> Iterator[WatchedWorkspaces]:
    watched = WatchedWorkspaces(roles)
    try:
        yield watched
    finally:
        watched.close()


@pytest.fixture
def watched(place: Place) -> Iterator[WatchedWorkspaces]:
    with watch_workspaces(place.roles) as workspaces:
        yield workspaces


def begin_version(watched: WatchedWorkspaces, workspace: Path) -> WorkspaceVersion:
    version = watched.begin(workspace)
    assert version is not None
    assert watched.holds(version)
    return version


def note_queues() -> list[str]:
    """Return the system's information on each inotify queue of this process."""
    infos = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the thread that lists
            if "inotify" in os.readlink(f"/proc/self/fd/{descriptor}"):
                infos.append(Path(f"/proc/self/fdinfo/{descriptor}").read_text())
    return infos


def watches() -> int:
    return sum(text.count("inotify wd:") for text in note_queues())


# -- changes by people and programs ----------------------------------------------------------------------------

Edit = Callable[[Place], None]


def prompt(place: Place) -> Path:
    return place.workspace / "prompt"


def write_in_place(place: Place) -> None:
    with open(prompt(place) / "a.md", "r+") as file:
        file.write("Word")


def truncate(place: Place) -> None:
    os.truncate(prompt(place) / "a.md", 3)


def append(place: Place) -> None:
    with open(prompt(place) / "a.md", "a") as file:
        file.write(" More.")


def rename_over(place: Place) -> None:
    place.write(place.base / "beside.md", 7)
    os.replace(place.base / "beside.md", prompt(place) / "a.md")


def dance(place: Place) -> None:
    """Save like an editor: rename the old file, create a new one in its place, delete the old one."""
    file = prompt(place) / "a.md"
    file.rename(prompt(place) / "a.md~")
    file.write_text("Saved.")
    (prompt(place) / "a.md~").unlink()


def delete(place: Place) -> None:
    (prompt(place) / "a.md").unlink()


def change_mode(place: Place) -> None:
    (prompt(place) / "a.md").chmod(0o600)


def change_mode_of_a_folder(place: Place) -> None:
    prompt(place).chmod(0o700)


def link_for_a_file(place: Place) -> None:
    (prompt(place) / "a.md").rename(place.base / "a.md")
    (prompt(place) / "a.md").symlink_to(place.base / "a.md")


def link_for_a_folder(place: Place) -> None:
    prompt(place).rename(place.base / "prompt")
    prompt(place).symlink_to(place.base / "prompt")


def another_folder(place: Place) -> None:
    prompt(place).rename(place.base / "prompt")
    place.write(prompt(place) / "a.md", 7)


def another_workspace(place: Place) -> None:
    place.workspace.rename(place.base / "law.old")
    place.fill(place.workspace, 7)


def move_workspaces(place: Place) -> None:
    parent = place.workspace.parent
    parent.rename(place.base / "workspaces.old")
    place.fill(place.workspace, 7)


def replace_way(place: Place) -> None:
    shutil.copytree(place.way, place.base / "other", symlinks=True)
    place.write(place.base / "other" / "workspaces" / "law" / "prompt" / "a.md", 7)
    (place.base / "new").symlink_to("other")
    os.replace(place.base / "new", place.way)


def remove_workspace(place: Place) -> None:
    shutil.rmtree(place.workspace)


def deep_file(place: Place) -> None:
    place.write(place.workspace / ".promptx/resource/deep/er/clerk.role.md", 7)


def deep_folder(place: Place) -> None:
    place.write(place.workspace / ".promptx/resource/deep/er/and/deeper/clerk.role.md", 7)


def skill(place: Place) -> None:
    place.write(place.workspace / "skills/x/SKILL.md", 7)


def another_skill(place: Place) -> None:
    place.write(place.workspace / "skills/z/SKILL.md", 7)


def builtin_role(place: Place) -> None:
    place.write(place.roles / "aide.role.md", 7)


def file_for_a_folder(place: Place) -> None:
    (place.workspace / "documents").rmdir()
    (place.workspace / "documents").touch()


def another_process(place: Place) -> None:
    code = "import sys; open(sys.argv[1], 'a').write(' More.')"
    subprocess.run([sys.executable, "-c", code, prompt(place) / "a.md"], check=True, timeout=60)


EDITS: list[Edit] = [
    *(write_in_place, truncate, append, rename_over, dance, delete, change_mode, change_mode_of_a_folder),
    *(
        link_for_a_file,
        link_for_a_folder,
        another_folder,
        another_workspace,
        move_workspaces,
        replace_way,
        remove_workspace,
    ),
    *(deep_file, deep_folder, skill, another_skill, builtin_role, file_for_a_folder, another_process),
]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_edit_changes_the_workspace_version_each_time(
    edit: Edit, place: Place, watched: WatchedWorkspaces, tmp_path: Path
) -> None:
    version = begin_version(watched, place.workspace)
    append(place)
    assert not watched.holds(version)
    version = begin_version(watched, place.workspace)
    place.look()
    assert watched.holds(version)
    edit(place)
    assert not watched.holds(version)
    assert not watched.holds(version)


def test_an_edit_causes_one_scan(place: Place, watched: WatchedWorkspaces) -> None:
    for _ in range(3):
        version = begin_version(watched, place.workspace)
        assert watched.begin(place.workspace) is version
        append(place)
        assert not watched.holds(version)


@pytest.mark.parametrize("name", ["", "prompt", "skills", ".promptx"])
def test_creating_a_missing_folder_changes_the_workspace_version(
    name: str, place: Place, watched: WatchedWorkspaces
) -> None:
    shutil.rmtree(place.workspace / name)
    version, state = watched.begin(place.workspace), place.look()
    place.fill(place.workspace, 7)
    assert place.look() != state
    assert not watched.holds(version)


def test_nothing_is_cached_for_an_empty_workspace(place: Place, watched: WatchedWorkspaces) -> None:
    """The system reports the end of an empty folder once no process has it open."""
    shutil.rmtree(place.workspace)
    place.workspace.mkdir()
    version = watched.begin(place.workspace)
    descriptor = os.open(place.workspace, os.O_RDONLY)
    try:
        place.workspace.rmdir()
        place.fill(place.workspace, 7)
        assert not watched.holds(version)
    finally:
        os.close(descriptor)


def test_unrelated_workspace_files_do_not_change_the_version(place: Place, watched: WatchedWorkspaces) -> None:
    (place.workspace / "notes.txt").touch()
    (place.workspace / ".promptx" / "state.json").touch()
    (place.workspace / ".promptx" / "cognition" / "clerk").mkdir(parents=True)
    version = begin_version(watched, place.workspace)
    (place.workspace / "notes.txt").write_text("A server's own.")
    (place.workspace / ".promptx" / "state.json").write_text("PromptX' own.")
    (place.workspace / ".promptx" / "cognition" / "clerk" / "engrams.db").write_text("A memory.")
    (place.workspace / "documents" / "a.md").write_text("A document.")
    (place.workspace / "files" / "made").mkdir()
    place.fill(place.workspace.parent / "tax", 1)
    (place.base / "real" / "beside.txt").write_text("Around it.")
    place.look()
    assert watched.holds(version)


def test_lost_file_events_change_all_workspace_versions(place: Place, watched: WatchedWorkspaces) -> None:
    queue_limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if queue_limit > 200_000:
        pytest.skip("so many changes take too long")
    second_workspace = place.workspace.parent / "tax"
    place.fill(second_workspace, 0)
    versions = [begin_version(watched, place.workspace), begin_version(watched, second_workspace)]
    files = [prompt(place) / "a.md", place.workspace / FILES[2]]
    for number in range(queue_limit + 2):  # alternate, because the same change twice would be one notification
        os.utime(files[number % 2])
    place.write(second_workspace / "prompt" / "a.md", 7)
    assert not any(watched.holds(version) for version in versions)
    second_version = begin_version(watched, second_workspace)
    place.write(second_workspace / "prompt" / "a.md", 8)
    assert not watched.holds(second_version)


def test_a_second_hard_link_is_detected_by_the_next_scan(place: Place, watched: WatchedWorkspaces) -> None:
    version = begin_version(watched, place.workspace)
    os.link(prompt(place) / "a.md", place.base / "second.md")
    (place.base / "second.md").write_text("Through the other name.")
    assert [watched.holds(version) for _ in range(LOOK_ANEW)] == [True] * (LOOK_ANEW - 1) + [False]
    next_version = begin_version(watched, place.workspace)
    assert next_version is not version
    assert not watched.holds(version)


# -- random changes in any order ------------------------------------------------------------------------------

PATHS = st.sampled_from([*FILES, *FOLDERS, ""])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["write", "append", "put", "mode", "remove", "link", "mkdir", "truncate"]), PATHS, PATHS),
    st.tuples(st.just("rename"), PATHS, PATHS),
    st.tuples(st.sampled_from(["builtin", "way", "around", "nothing"]), PATHS, PATHS),
)


def take_step(place: Place, kind: str, name: str, second_name: str, number: int) -> None:
    """Change something, if the current state allows the change."""
    path, second_path = place.workspace / name, place.workspace / second_name
    if kind == "write":
        place.write(path, number)
    elif kind == "append":
        with open(path, "a") as file:
            file.write(f"{number}")
    elif kind == "truncate":
        os.truncate(path, number % 20)
    elif kind == "put":
        place.write(place.base / "draft" / Path(name).name, number)
        os.replace(place.base / "draft" / Path(name).name, path)
    elif kind == "mode":
        path.chmod(0o700 if number % 2 else 0o755)
    elif kind == "remove":
        remove(path)
    elif kind == "link":
        remove(path)
        path.symlink_to(second_path)
    elif kind == "mkdir":
        path.mkdir(parents=True)
    elif kind == "rename":
        path.rename(second_path)
    else:
        take_step_around(place, kind, path, number)


def take_step_around(place: Place, kind: str, path: Path, number: int) -> None:
    """Change something outside of the workspace."""
    if kind == "builtin":
        place.write(place.roles / path.name, number)
    elif kind == "way":
        place.way.rename(place.base / f"way-{number}")
        shutil.copytree(place.base / f"way-{number}", place.base / f"copy-{number}", symlinks=True)
        place.way.symlink_to(f"copy-{number}")
        place.write(path, number)
    elif kind == "around":
        place.workspace.parent.rename(place.base / f"around-{number}")
        shutil.copytree(place.base / f"around-{number}", place.workspace.parent, symlinks=True)
        place.write(path, number)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@PATIENT
@given(st.lists(STEPS, max_size=LOOK_ANEW - 2))
def test_a_changed_workspace_never_keeps_its_version(steps: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        with watch_workspaces(place.roles) as watched:
            version, state = watched.begin(place.workspace), place.look()
            for number, (kind, name, second_name) in enumerate(steps, 1):
                with suppress(OSError, shutil.Error):
                    take_step(place, kind, name, second_name, number)
                if not watched.holds(version):
                    version, state = watched.begin(place.workspace), place.look()
                else:
                    assert kind == "nothing" or place.look() == state
            (place.roles / "end").touch()
            version = watched.begin(place.workspace)
            place.look()
            if version is not None:
                assert all(watched.holds(version) for _ in range(LOOK_ANEW))
            assert not watched.holds(version)


# -- limits, and missing notifications ------------------------------------------------------------------------


def test_only_the_most_recently_used_workspaces_are_watched(place: Place, watched: WatchedWorkspaces) -> None:
    before = watches()
    workspaces = [place.workspace.parent / f"w{number}" for number in range(MOST_WORKSPACES)]
    for workspace in workspaces:
        (workspace / "prompt").mkdir(parents=True)
    versions = [begin_version(watched, workspace) for workspace in workspaces]
    full = watches()
    assert begin_version(watched, workspaces[0]) is versions[0]
    begin_version(watched, place.workspace)
    assert watched.holds(versions[0])
    assert not watched.holds(versions[1])
    assert watched.holds(versions[2])
    for workspace in workspaces:
        shutil.rmtree(workspace)
        assert watched.begin(workspace) is None
    assert watches() - before < full / 10
    assert watched.begin(place.workspace) is not None


def test_a_workspace_with_too_many_folders_is_scanned_without_a_watch(place: Place, watched: WatchedWorkspaces) -> None:
    before = watches()
    for number in range(MOST_FOLDERS):
        (place.workspace / "skills" / f"s{number}").mkdir()
    assert watched.begin(place.workspace) is None
    assert watches() == before
    shutil.rmtree(place.workspace / "skills")
    begin_version(watched, place.workspace)


def test_deep_folders_of_a_skill_are_not_watched(place: Place, watched: WatchedWorkspaces) -> None:
    for number in range(MOST_FOLDERS):
        (place.workspace / f"skills/x/lib/p{number}").mkdir(parents=True)
    version = begin_version(watched, place.workspace)
    place.write(place.workspace / "skills/x/lib/p1/code.py", 7)
    assert watched.holds(version)
    skill(place)
    assert not watched.holds(version)


def test_a_folder_mounted_by_two_workspaces_counts_in_both(place: Place, watched: WatchedWorkspaces) -> None:
    inner = prompt(place) / "inner"
    place.fill(inner, 0)
    outer = begin_version(watched, place.workspace)
    in_the_way = begin_version(watched, prompt(place))
    begin_version(watched, inner)
    append(place)
    assert not watched.holds(outer)
    outer, nested = begin_version(watched, place.workspace), begin_version(watched, inner)
    shutil.rmtree(inner)
    assert not watched.holds(nested)
    assert watched.begin(inner) is None
    assert not watched.holds(in_the_way)
    append(place)
    assert not watched.holds(outer)


@pytest.mark.parametrize("workspace", [Path("/proc/self"), Path("/sys/kernel"), Path("/dev/null")], ids=str)
def test_workspaces_on_remote_file_systems_are_not_cached(workspace: Path, watched: WatchedWorkspaces) -> None:
    before = watches()
    assert watched.begin(workspace) is None
    assert watches() == before


def test_missing_or_unwatchable_built_in_roles_disable_the_cache(place: Place) -> None:
    for roles in (place.base / "none", Path("/proc/self")):
        with watch_workspaces(roles) as watched:
            assert watched.begin(place.workspace) is None


def test_a_cyclic_path_ends(place: Place, watched: WatchedWorkspaces) -> None:
    (place.base / "a").symlink_to("b")
    (place.base / "b").symlink_to("a")
    assert watched.begin(place.base / "a" / "law") is None


def test_after_the_end_no_value_is_kept(place: Place) -> None:
    before, queues = watches(), len(note_queues())
    watched = WatchedWorkspaces(place.roles)
    version = begin_version(watched, place.workspace)
    watched.close()
    watched.close()
    assert not watched.holds(version)
    assert not watched.holds(None)
    assert watched.begin(place.workspace) is None
    assert (watches(), len(note_queues())) == (before, queues)


# -- threads --------------------------------------------------------------------------------------------------


def test_concurrently_started_watch_threads_miss_no_change(place: Place, watched: WatchedWorkspaces) -> None:
    workspaces = [place.workspace.parent / f"w{number}" for number in range(4)]
    for path in workspaces:
        place.fill(path, 0)
    stop = Event()

    def edit(workspace: Path) -> None:
        for number in range(100):
            version = watched.begin(workspace)
            place.write(workspace / "prompt" / "a.md", number)
            assert not watched.holds(version)
            deep = workspace / ".promptx" / "resource" / f"deep{number}"
            deep.mkdir()  # next to the listing of another thread whose path has the same beginning
            version = watched.begin(workspace)
            place.write(deep / "clerk.role.md", number)
            assert not watched.holds(version)
            shutil.rmtree(deep)

    def begin(workspace: Path) -> None:
        while not stop.is_set():
            watched.holds(watched.begin(workspace))

    with ThreadPoolExecutor(len(workspaces) + 2) as threads:
        beside = [threads.submit(begin, workspace) for workspace in (*workspaces[:1], place.workspace)]
        try:
            for future in [threads.submit(edit, workspace) for workspace in workspaces]:
                future.result()
        finally:
            stop.set()
        for each_beside in beside:
            each_beside.result()
    era = begin_version(watched, place.workspace)
    builtin_role(place)
    assert not watched.holds(era)


def test_a_shutdown_during_the_start_of_threads_leaves_no_watch(place: Place) -> None:
    workspaces = [place.workspace.parent / f"w{number}" for number in range(4)]
    for path in workspaces:
        place.fill(path, 0)
    for _ in range(25):
        watched, versions, stop = WatchedWorkspaces(place.roles), list[WorkspaceVersion | None](), Event()

        def begin(
            workspace: Path,
            watched: WatchedWorkspaces = watched,
            versions: list[WorkspaceVersion | None] = versions,
            stop: Event = stop,
        ) -> None:
            while not stop.is_set():
                versions.append(watched.begin(workspace))
                (workspace / "prompt" / "a.md").touch()

        with ThreadPoolExecutor(len(workspaces)) as threads:
            running = [threads.submit(begin, workspace) for workspace in workspaces]
            try:
                while not any(versions):
                    assert not any(thread.done() for thread in running)
                watched.close()
                with watch_workspaces(place.roles):  # has the number of the closed descriptor
                    stop.set()
                    for thread in running:
                        thread.result()
                    assert watches() == 0
            finally:
                stop.set()
        assert not any(watched.holds(version) for version in versions)


# -- with the application -------------------------------------------------------------------------------------


def test_the_snapshot_cache_keeps_only_recent_workspaces(place: Place, watched: WatchedWorkspaces) -> None:
    sights: SnapshotCache[int, str] = SnapshotCache(watched)
    version = watched.begin(place.workspace)
    sights.keep(0, WorkspaceSnapshot(None, "only for who looked"))
    assert sights.find(0) is None
    for key in range(MOST_WORKSPACES + 1):
        sights.keep(key, WorkspaceSnapshot(version, f"look {key}"))
    assert sights.find(0) is None
    cached = sights.find(1)
    assert cached is not None
    assert cached.found == "look 1"
    append(place)
    assert sights.find(1) is None
    sights.keep(1, WorkspaceSnapshot(None, "nothing is known now"))
    assert sights.find(1) is None


async def test_an_unchanged_workspace_needs_no_scan_and_an_edit_applies_in_the_next_turn(tmp_path: Path) -> None:
    async with Rig(tmp_path, *(say(str(number)) for number in range(2))) as rig:
        domain = await rig.domain(subRoleIds=["researcher"])
        workspace = rig.settings.workspaces / domain
        component, role = workspace / "prompt" / "10-a.md", workspace / ".promptx/resource/researcher.role.md"
        component.write_text("First words.")
        role.write_text(text_for(role, 1))
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "Hi")
        assert "First words." in str(rig.model.requests[-1].system)
        services, roles = rig.application.services, rig.application.parts.roles
        user = User("olga", operator=True)
        record = await services.conversations.create(user, domain)
        first, _ = await services.definitions.definition(user, record)
        text_hash = await roles.hash(domain, "researcher")
        answers = Event()

        def hang() -> None:
            answers.wait()

        async with anyio.create_task_group() as tasks:
            try:
                for owner in (domain, str(workspace)):
                    for _ in range(PLACES):  # a job that needs a thread of this domain now gets none
                        tasks.start_soon(rig.application.parts.threads.run, owner, hang)
                await anyio.wait_all_tasks_blocked()
                assert (await services.definitions.definition(user, record))[0] == first
                assert await roles.hash(domain, "researcher") == text_hash
            finally:
                answers.set()
        component.write_text("Second words.")
        role.write_text(text_for(role, 2))
        await rig.say(conversation, "Go on")
        assert "Second words." in str(rig.model.requests[-1].messages[-1])  # the text before it is unchanged
        assert await roles.hash(domain, "researcher") != text_hash
        second, _ = await services.definitions.definition(user, record)
        assert second.role_lines != first.role_lines


async def test_a_deleted_domain_has_no_role_though_its_workspace_is_unchanged(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain, roles = await rig.domain(), rig.application.parts.roles
        assert await roles.hash(domain, "nuwa") is not None
        await rig.ok("DELETE", f"/api/domains/{domain}")
        assert await roles.hash(domain, "nuwa") is None
        assert await roles.hash(domain, "no id") is None
