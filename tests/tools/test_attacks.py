"""Attacks on child processes: each is refused, and leaves no process, no file and no heartbeat."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentic_rag.base.errors import CommandNotAllowed, InvalidInput, PackageProblem
from agentic_rag.base.redaction import Redactor
from agentic_rag.tools.entries.entry import McpEntry, StdioTarget, Template
from agentic_rag.tools.launch.allowed import ExtraRights, LaunchCatalogue
from agentic_rag.tools.launch.policy import LaunchPolicy, LiftedRules
from agentic_rag.tools.launch.spec import LaunchSpec, spec_of
from agentic_rag.tools.toolset import open_toolset
from tests.tools import attack_lines
from tests.tools.captives import CAPTIVE, PYTHON, allow_captive, needs_bubblewrap, policy_in
from tests.tools.support import QUICK, START, Hub, line_of, stdio_spec

pytestmark = pytest.mark.attack(kind="spawning")

FILESYSTEM = ["-y", "@modelcontextprotocol/server-filesystem"]


def entry(command: str, *args: str, workspace: Path | None = None, env: dict[str, str] | None = None) -> LaunchSpec:
    return stdio_spec(command, *args, env=env, domain="law", workspace=str(workspace or ""))


def catch_refusal(policy: LaunchPolicy, spec: LaunchSpec) -> CommandNotAllowed | InvalidInput:
    """Assert that an entry can neither be saved nor started, and that an attempt leaves nothing."""
    with pytest.raises((CommandNotAllowed, InvalidInput)) as save_refusal:
        policy.review(spec)
    with pytest.raises((CommandNotAllowed, InvalidInput)) as start_refusal:
        policy.resolve(spec)
    assert str(save_refusal.value) == str(start_refusal.value)
    error = save_refusal.value
    assert isinstance(error, CommandNotAllowed | InvalidInput)
    assert error.path.startswith("mcpServers.x.")
    assert not policy.homes.exists()
    assert policy.sweep() == 0
    return error


@pytest.mark.parametrize("text", attack_lines.ALL)
def test_a_refused_command_line_shows_the_compared_values(tmp_path: Path, text: str) -> None:
    command, *args = text.split(" ")
    error = catch_refusal(policy_in(tmp_path), entry(command, *args))
    assert isinstance(error, CommandNotAllowed) or command == ""
    if isinstance(error, CommandNotAllowed):
        assert error.reason


async def test_refused_entries_start_nothing_in_a_pool_either(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    lines = [text.split(" ") for text in attack_lines.ALL if not text.startswith((" ", "\t"))]
    specs = [stdio_spec(*line, name=f"x{number}") for number, line in enumerate(lines)]
    async with Hub(policy=policy, patience=QUICK) as hub:
        toolset = await open_toolset(hub, specs, wait=START)
        assert toolset.tools == ()
        assert len(toolset.notices) == len(specs)
        assert {status.state for status in hub.status()} == {"failed"}
    assert not policy.homes.exists()


def test_the_refusal_names_the_operators_command_to_allow_the_line(tmp_path: Path) -> None:
    error = catch_refusal(policy_in(tmp_path), entry("npx", "-y", "my server", "it's", env={"KEY": "x"}))
    assert isinstance(error, CommandNotAllowed)
    error = catch_refusal(policy_in(tmp_path), entry("/opt/server", "it's", "--x", env={"KEY": "x"}))
    assert isinstance(error, CommandNotAllowed)
    assert "agentic-rag mcp allow --env KEY -- /opt/server 'it'\"'\"'s' --x" in error.remedy


STEERING = (
    "NODE_OPTIONS node_options LD_PRELOAD Ld_Preload PYTHONPATH BASH_ENV GIT_SSH_COMMAND PATH npm_config_prefix HOME "
    "IFS PERL5OPT RUBYOPT DYLD_INSERT_LIBRARIES AGENTIC_RAG_MCP_CHILD"
)


@pytest.mark.parametrize("name", STEERING.split(" "))
def test_a_loader_variable_is_refused_with_its_path(tmp_path: Path, name: str) -> None:
    spec = entry("npx", "-y", "@modelcontextprotocol/server-memory", env={name: "x"})
    assert str(catch_refusal(policy_in(tmp_path), spec)).startswith(f"mcpServers.x.env.{name}: ")
    free = policy_in(tmp_path, lifted=LiftedRules(any_command=True, loopback=True))
    spec = entry("/bin/true", env={name: "x"})
    assert str(catch_refusal(free, spec)).startswith(f"mcpServers.x.env.{name}: ")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    files = folder / "files"
    (files / "docs").mkdir(parents=True)
    for name in ("documents", "prompt", ".promptx/cognition.user/anna"):
        (folder / name).mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (files / "out").symlink_to(tmp_path / "outside")
    (files / "root").symlink_to("/")
    (files / "docs" / "up").symlink_to("../..")
    (files / "inside").symlink_to("docs")
    (files / "memories").symlink_to("../.promptx")
    return folder


@pytest.mark.parametrize(
    "path",
    [
        *("..", "../outside", "docs/../..", "/", "/etc", "out", "out/x", "root", "root/etc", "docs/up", "nowhere"),
        *("~", "~root", "$HOME", "file:///etc", "//etc", "-", "--x", "-rf", "docs\x00/etc", "docs\n/etc", "\\.."),
        *("docs/up/outside", "docs/..", "%2e%2e", "․․", "．．", ""),
    ],
)  # fmt: skip
def test_a_path_that_leads_out_of_the_workspace_is_refused(tmp_path: Path, workspace: Path, path: str) -> None:
    for text in {path, f"{workspace}/files/{path}"} if path.strip("./\\") not in ("", "docs") else {path}:
        catch_refusal(policy_in(tmp_path), entry("npx", *FILESYSTEM, text, workspace=workspace))


@pytest.mark.parametrize("path", [".", "docs", "./docs", "docs/", "inside"])
def test_a_path_inside_the_workspace_is_saved_and_not_downloaded_at_a_start(
    tmp_path: Path, workspace: Path, path: str
) -> None:
    policy = policy_in(tmp_path, sandbox="none", lifted=LiftedRules(unsandboxed=True, loopback=True))
    spec = entry("npx", *FILESYSTEM, path, workspace=workspace)
    review = policy.review(spec)
    assert review.catalogue_id == "filesystem"
    assert isinstance(review.target, StdioTarget)
    assert review.target.args[-1] == path
    assert policy.trust(spec).read_only
    with pytest.raises(PackageProblem, match="not installed yet"):
        policy.resolve(spec)


@pytest.mark.parametrize(
    "path",
    ["{w}", "{w}/", "{w}/documents", "{w}/prompt", "{w}/.promptx", "{w}/.promptx/cognition.user/anna", "memories"],
)
def test_a_path_outside_the_files_folder_is_refused_at_save_and_at_start(
    tmp_path: Path, workspace: Path, path: str
) -> None:
    policy = policy_in(tmp_path, sandbox="none", lifted=LiftedRules(unsandboxed=True, loopback=True))
    spec = entry("npx", *FILESYSTEM, path.format(w=workspace), workspace=workspace)
    for check in (policy.review, policy.resolve):
        with pytest.raises(CommandNotAllowed, match="files folder") as refusal:
            check(spec)
        assert refusal.value.details["path"] == "mcpServers.x.args"


@pytest.mark.parametrize("strange", [os.mkfifo, Path.touch])
def test_an_mcp_server_gets_no_files_folder_if_it_is_a_link_or_file(
    tmp_path: Path, workspace: Path, strange: Callable[[Path], None]
) -> None:
    shutil.rmtree(workspace / "files")
    strange(workspace / "files")
    policy = policy_in(tmp_path, sandbox="none", lifted=LiftedRules(unsandboxed=True, loopback=True))
    for check in (policy.review, policy.resolve):
        with pytest.raises(InvalidInput, match="files/ of the workspace is no folder"):
            check(entry("npx", *FILESYSTEM, ".", workspace=workspace))


@pytest.mark.parametrize("name", ["documents", "prompt", ".promptx"])
def test_a_name_of_our_servers_is_not_available_to_others(tmp_path: Path, workspace: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="in files/ of the workspace"):
        policy_in(tmp_path).review(entry("npx", *FILESYSTEM, name, workspace=workspace))


async def test_an_operators_folder_that_overlaps_the_data_is_refused_on_saving(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "workspaces" / "law").mkdir(parents=True)
    for folder in (tmp_path, data, data / "workspaces" / "law"):
        policy = policy_in(data, data=data)
        assert policy.packages is not None
        line = ["/usr/bin/true"]
        await policy.catalogue.allow(line, ExtraRights(folders=(str(folder),)), policy.packages, [])
        with pytest.raises(CommandNotAllowed, match="contains the server's data, or is inside it"):
            policy.review(entry(*line, workspace=data / "workspaces" / "law"))


def test_a_path_without_a_workspace_is_refused(tmp_path: Path) -> None:
    catch_refusal(policy_in(tmp_path), entry("npx", *FILESYSTEM, "."))


async def test_nothing_under_a_workspace_or_a_childs_folder_can_be_allowed(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    assert policy.packages is not None
    for folder in (tmp_path / "workspaces" / "law", policy.homes / "abc"):
        folder.mkdir(parents=True)
        program = folder / "server"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        link = tmp_path / f"link-{folder.name}"
        link.symlink_to(program)
        for line in ([str(program)], [str(link)], [PYTHON, str(program)], [PYTHON, f"--script={program}"]):
            with pytest.raises((CommandNotAllowed, InvalidInput)):
                await policy.catalogue.allow(
                    line, ExtraRights(), policy.packages, [tmp_path / "workspaces", policy.homes]
                )
    assert policy.catalogue.allowed_entries() == ()
    assert not (tmp_path / "mcp" / "allowed.json").exists()


@needs_bubblewrap
async def test_a_workspace_that_comes_to_contain_an_allowed_program_revokes_its_permission(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    spec = await allow_captive(policy)
    inside = stdio_spec(*line_of(spec), workspace=str(CAPTIVE.parent))
    with pytest.raises(CommandNotAllowed, match="nothing under a workspace"):
        policy.resolve(inside)


@needs_bubblewrap
async def test_a_program_of_the_same_name_earlier_on_the_path_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = tmp_path / "true"
    shadow.write_text(f"#!/bin/sh\ntouch {tmp_path}/shadowed\n")
    shadow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    policy = policy_in(tmp_path)
    assert policy.packages is not None
    entry_made = await policy.catalogue.allow(["true"], ExtraRights(), policy.packages, [])
    assert entry_made.runs.line == ("true",)
    command = policy.resolve(entry("true"))
    assert command.executable.startswith("/usr/")
    assert not (tmp_path / "shadowed").exists()


async def test_an_allowed_command_line_allows_no_other_argument(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    spec = await allow_captive(policy, "--mode=a")
    policy.review(spec)
    base = line_of(spec)[1:]
    for args in (base[:-1], [*base, "--more"], [*base[:-1], "--mode=b"], [*base[1:], base[0]], ["-c", "id"], []):
        with pytest.raises(CommandNotAllowed):
            policy.review(stdio_spec(PYTHON, *args))


async def test_a_revoked_command_line_is_refused_at_the_next_start(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    spec = await allow_captive(policy)
    (allowed_entry,) = policy.catalogue.allowed_entries()
    policy.review(spec)
    second_catalogue = LaunchCatalogue(tmp_path / "mcp")  # the command line, beside a running server
    assert second_catalogue.revoke(allowed_entry.id)
    assert not second_catalogue.revoke(allowed_entry.id)
    with pytest.raises(CommandNotAllowed):
        policy.review(spec)
    assert (tmp_path / "mcp" / "allowed.json").stat().st_mode & 0o077 == 0


@needs_bubblewrap
async def test_only_variables_named_by_the_operator_are_passed(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    spec = await allow_captive(policy, env=("NODE_OPTIONS", "KEY"))
    line = line_of(spec)
    command = policy.resolve(stdio_spec(*line, env={"NODE_OPTIONS": "--x", "KEY": "k"}))
    assert {command.env["NODE_OPTIONS"], command.env["KEY"]} == {"--x", "k"}
    with pytest.raises(CommandNotAllowed):
        policy.resolve(stdio_spec(*line, env={"OTHER": "x"}))


def test_reading_and_reviewing_configurations_starts_no_process(tmp_path: Path) -> None:
    marker = tmp_path / "spawned"
    code = (
        "import sys, subprocess, os\n"
        "def no(*args, **kwargs): open(sys.argv[1], 'w').close()\n"
        "subprocess.Popen.__init__ = os.execve = os.fork = os.posix_spawn = no\n"
        "from agentic_rag.tools.launch import policy as launch, spec\n"
        "from agentic_rag.tools.entries import reading\n"
        "from pathlib import Path\n"
        "policy = launch.LaunchPolicy(Path(sys.argv[2]))\n"
        "document = {'x': {'command': 'npx', 'args': ['-y', '@modelcontextprotocol/server-memory']}}\n"
        "entry = reading.read_entries(document).entries['x']\n"
        "print(policy.review(spec.spec_of(entry)).catalogue_id)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, str(marker), str(tmp_path / "homes")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout.strip() == "memory"
    assert not marker.exists()
    assert not (tmp_path / "homes").exists()


async def test_a_secret_never_appears_in_arguments_repr_keys_status_or_stderr(tmp_path: Path) -> None:
    secret = "hunter2-hunter2"
    policy = policy_in(tmp_path, sandbox="none", lifted=LiftedRules(unsandboxed=True, loopback=True))
    spec = await allow_captive(policy, "--heartbeat", env=("TOKEN",))
    command, *args = line_of(spec)
    entry = McpEntry("x", StdioTarget(command, tuple(args), {"TOKEN": Template("${TOKEN}")}))
    spec = spec_of(entry, secrets={"TOKEN": secret})
    resolved = policy.resolve(spec)
    assert resolved.env["TOKEN"] == secret
    texts = [repr(spec), repr(resolved), resolved.plan(), repr(policy.review(spec)), spec.key(), spec.entry.hash()]
    assert secret not in " ".join([*texts, *resolved.args])

    redactor = Redactor()
    redactor.add(spec.domain, "TOKEN", secret)
    async with Hub(policy=policy, patience=QUICK, redactor=redactor) as hub:
        connection = (await hub.acquire([spec], wait=START))["x"]
        assert connection.state == "ready"
        connection._tail.append(f"starting with {secret}")
        assert secret not in repr(hub.status())
        assert not any(secret in line for line in command_lines())
    second_spec = spec_of(entry, secrets={"TOKEN": "another-secret"})
    assert second_spec.key() != spec.key()
    assert second_spec.entry.hash() == spec.entry.hash()


async def test_an_unset_value_fails_its_own_server_with_the_reason(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    spec = spec_of(McpEntry("x", StdioTarget(PYTHON, (), {"TOKEN": Template("${TOKEN}")})))
    async with Hub(policy=policy, patience=QUICK) as hub:
        toolset = await open_toolset(hub, [spec], wait=START)
        assert toolset.notices == (
            (
                "x",
                "mcpServers.x.env.TOKEN: ${TOKEN} has no value; set the variable or the secret TOKEN of this domain.",
            ),
        )


def command_lines() -> list[str]:
    lines = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # ended meanwhile
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace"))
    return lines
