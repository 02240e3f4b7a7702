"""The commands `agentic-rag users` and `roles push` against a server: their output and the rights they use."""

import json
import re
from pathlib import Path

import anyio.to_thread
from typer.testing import CliRunner, Result

from agentic_rag.cli import app
from tests.access.tenants import make_key
from tests.server.rig import Rig
from tests.ws.serving import serving

ROLE = "<role><personality>Answers about leave. @!thought://calm</personality></role>"
THOUGHT = "<thought><exploration>Slowly.</exploration></thought>"


async def run(address: str, key: str, *arguments: str) -> Result:
    """Run a command in a thread, like a separate process."""
    words = ["--key", key, *arguments, "--url", f"http://{address}"]
    return await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, words))


async def test_an_operator_manages_users_and_an_author_pushes_roles(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "role" / "clerk"
    folder.mkdir(parents=True)
    (folder / "clerk.role.md").write_text(ROLE)
    (folder / "calm.thought.md").write_text(THOUGHT)
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        domain, other_domain = await rig.domain(), await rig.domain()
        root = await make_key(rig, "root", "operator")
        created = await run(address, root, "users", "create", "ann", "--grant", f"{domain}=author")
        assert (created.exit_code, created.stdout) == (0, f"ann: {domain}=author\n")
        key = (await run(address, root, "keys", "create", "--user", "ann")).stdout.strip()
        pushed = await run(address, key, "roles", "push", domain, str(tmp_path / "mine"))
        assert (pushed.exit_code, len(pushed.stdout.splitlines())) == (0, 2), pushed.output
        role = await rig.ok("GET", f"/api/domains/{domain}/roles/clerk")
        assert "Slowly." in role["text"]
        result = await run(
            address, root, "users", "change", "ann", "--grant", f"{other_domain}=member", "--remove", domain
        )
        assert result.stdout == f"ann: {other_domain}=member\n"
        refusal = await run(address, key, "roles", "push", domain, str(tmp_path / "mine"))
        assert refusal.exit_code == 1
        (folder / "clerk.role.md").write_text("half")
        failed_push = await run(address, root, "roles", "push", domain, str(tmp_path / "mine"))
        assert (failed_push.exit_code, failed_push.stdout) == (1, "")
        assert (await run(address, root, "users", "create", "x", "--grant", "nonsense")).exit_code == 2
        assert (await run(address, root, "users", "disable", "ann")).exit_code == 0
        assert "ann\tdisabled\tlocal" in (await run(address, root, "users", "list")).stdout
        assert (await run(address, root, "users", "enable", "ann")).exit_code == 0
        erasure = await run(address, root, "users", "erase", "ann")
        assert erasure.exit_code == 1, "nobody said yes"
        assert re.search(r"usage stays under #\d+", (await run(address, root, "users", "erase", "ann", "--yes")).stdout)
        assert "ann" not in (await run(address, root, "users", "list")).stdout


async def test_the_first_key_explains_its_effect_and_is_an_operators(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        domain = await rig.domain()
        local = rig.application.access.local_key
        member = ("keys", "create", "--user", "ann", "--role", "member", "--domain")
        failed_create = await run(address, local, *member, "nope")
        assert (failed_create.exit_code, (await rig.ok("GET", "/api/keys"))["items"]) == (1, []), "nothing has changed"
        created = await run(address, local, *member, domain)
        assert created.exit_code == 0, created.output
        (key,) = created.stdout.split()
        assert "From now on this server asks everyone for a key." in created.stderr
        assert "who may do everything" in created.stderr
        for created_key, operator in ((key, False), (created.stderr.split()[-1], True)):
            identity = await rig.ok("GET", "/api/auth", headers={"authorization": f"Bearer {created_key}"})
            assert identity["operator"] is operator
        second_key = await run(address, local, *member, domain)
        assert (second_key.exit_code, second_key.stderr.count("\n")) == (0, 1)


LISTS = [
    "domains list",
    "roles list {domain}",
    "secrets list {domain}",
    "keys list",
    "users list",
    "usage",
    "budgets list",
]
LISTS += ["audit list", "mcp requests", "memory show clerk --domain {domain}"]


async def test_every_command_with_a_table_prints_json_on_demand(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        domain = await rig.domain()
        key = await make_key(rig, "root", "operator")
        for command in LISTS:
            result = await run(address, key, *command.format(domain=domain).split(), "--json")
            assert result.exit_code == 0, (command, result.output)
            assert isinstance(json.loads(result.stdout), list), command
        domains = json.loads((await run(address, key, "domains", "list", "--json")).stdout)
        assert domain in [entry["id"] for entry in domains]


def test_the_price_list_prints_json_on_demand(tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"currency": "EUR", "models": {"claude-x": {"input": "3", "output": "15"}}}))
    result = CliRunner().invoke(app, ["models", "prices", str(prices), "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert (row["model"], row["currency"]) == ("claude-x", "EUR")
