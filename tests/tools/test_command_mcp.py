"""``agentic-rag mcp``: the commands of an operator, and the programs that a running server then allows."""

import json
import shutil
from pathlib import Path

import anyio.to_thread
import pytest
from typer.testing import CliRunner

from agentic_rag.base.errors import CommandNotAllowed, InvalidInput
from agentic_rag.cli import app
from agentic_rag.tools.toolset import open_toolset
from tests.server.rig import Rig
from tests.tools.captives import CAPTIVE, PYTHON, allow_captive, needs_bubblewrap, policy_in
from tests.tools.support import QUICK, START, Hub, stdio_spec, tool


def run(data: Path, command: str, *words: str) -> str:
    result = CliRunner().invoke(app, ["mcp", command, "--data", str(data), *words])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_line_is_allowed_listed_and_revoked_while_a_server_runs(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    spec = stdio_spec(PYTHON, "-I", str(CAPTIVE), "--mode")
    with pytest.raises(CommandNotAllowed) as refusal:
        policy.review(spec)
    assert "agentic-rag mcp allow -- " in refusal.value.remedy
    words = refusal.value.remedy.partition("mcp allow ")[2].partition(" — ")[0].split(" ")  # as it is printed
    output = run(tmp_path, "allow", "--network", "--read-only", "look", *words)
    assert "a server without keys asks every program for a key" in output
    assert f"open --data {tmp_path}" in output
    ident = output.split(" ")[1].rstrip(":")
    review = policy.review(spec)
    assert review.catalogue_id == ident
    assert policy.trust(spec).read_only == {"look"}
    assert run(tmp_path, "list").split("\t")[0] == ident
    assert "filesystem" in run(tmp_path, "list", "--all")
    assert run(tmp_path, "revoke", ident) == f"revoked {ident}\n"
    assert run(tmp_path, "list") == ""
    with pytest.raises(CommandNotAllowed):
        policy.review(spec)
    with pytest.raises(InvalidInput):
        run(tmp_path, "revoke", ident)


@pytest.mark.parametrize(
    "words",
    [
        *(["--", "npx", "-c", "id"], ["--", "uvx", "--from", "x", "y"], ["--", "npx", "-y", "git+https://h/x"]),
        *(["--", "no-such-program"], ["--", "./x"], ["--", "npx"]),
    ],
)
def test_a_command_line_that_cannot_be_pinned_is_not_allowed(tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(InvalidInput):
        run(tmp_path, "allow", *words)
    assert run(tmp_path, "list") == ""


@needs_bubblewrap
async def test_a_relative_script_in_the_operators_folder_is_allowed_and_starts(tmp_path: Path) -> None:
    local = tmp_path / "mcp" / "local"
    local.mkdir(parents=True)
    shutil.copy(CAPTIVE, local / "server.py")
    await anyio.to_thread.run_sync(run, tmp_path, "allow", "--", PYTHON, "./server.py", "--mode")
    async with Hub(policy=policy_in(tmp_path), patience=QUICK) as hub:
        toolset = await open_toolset(hub, [stdio_spec(PYTHON, "./server.py", "--mode")], wait=START)
        assert toolset.notices == ()
        assert tool(toolset, "look")


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ([PYTHON, "./server.py"], "there is no './server.py' in"),
        ([PYTHON, "server.py"], "there is no 'server.py' in"),
        ([PYTHON, "-I", "server.py"], "there is no 'server.py' in"),
        ([PYTHON, "../server.py"], "there is no '../server.py' in"),
        ([PYTHON, "/no/such/server.py"], "there is no file /no/such/server.py"),
    ],
)
def test_a_command_line_with_a_missing_script_is_refused_by_its_name(
    tmp_path: Path, words: list[str], missing: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        run(tmp_path, "allow", "--", *words)
    assert missing in str(refusal.value)
    assert run(tmp_path, "list") == ""


def test_a_script_in_the_working_folder_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "server.py").write_text("")
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InvalidInput, match="cp ") as refusal:
        run(tmp_path, "allow", "--", PYTHON, "./server.py")
    assert f"or name it {tmp_path}/here/server.py" in str(refusal.value)


async def test_a_configuration_with_comments_is_checked_and_only_its_named_fields_are_saved(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    entry = '"files": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/etc"]},'
    file.write_text(f'\ufeff{{ // ours\n"servers": {{{entry} "bad": {{"command": "x", "url": "y"}},}},}}', "utf-8")
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
    words = [domain, str(file), "--add", "files"]
    command = ["mcp", "check", "--data", str(rig.settings.data), *words]
    result = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, command))
    assert result.exit_code == 1, result.output
    assert "files: change proposed" in result.output
    assert "bad: not possible" in result.output
    assert "mcpServers.bad.url: an entry has either a command or a url" in result.output
    assert "saved files" in result.output
    json_result = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, [*command[:-2], "--json"]))
    rows = json.loads(json_result.stdout)["items"]
    assert [row["status"] for row in rows] == ["change_proposed", "not_possible"]


async def test_the_report_of_a_check_as_json_keeps_every_character(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"servers": {"arabic\u200f": {"command": "x", "url": "y"}}}), "utf-8")
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
    command = ["mcp", "check", "--data", str(rig.settings.data), domain, str(file), "--json"]
    result = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, command))
    assert [row["key"] for row in json.loads(result.stdout)["items"]] == ["arabic\u200f"]
    assert "\u200f" not in result.stdout


def test_allowing_a_command_line_again_replaces_the_first(tmp_path: Path) -> None:
    run(tmp_path, "allow", "--", PYTHON, "-I", str(CAPTIVE))
    run(tmp_path, "allow", "--network", "--", PYTHON, "-I", str(CAPTIVE))
    assert len(run(tmp_path, "list").splitlines()) == 1
    assert "\tnetwork" in run(tmp_path, "list")


@needs_bubblewrap
async def test_a_revoked_permission_applies_from_the_next_turn(tmp_path: Path) -> None:
    policy = policy_in(tmp_path)
    spec = await allow_captive(policy, read_only=("look",))
    async with Hub(policy=policy, patience=QUICK) as hub:
        trusted = await open_toolset(hub, [spec], wait=START)
        assert tool(trusted, "look").read_only
        await allow_captive(policy)
        assert not tool(await open_toolset(hub, [spec], wait=START), "look").read_only
        assert len(hub.status()) == 1
