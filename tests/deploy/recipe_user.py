"""A program for `test_recipes` that uses from outside what the recipes added to its copy of the repository.

``python -m tests.deploy.recipe_user FOLDER SCRIPTS``: ``SCRIPTS`` is a JSON array of the scripts to run first, each an
array of its path and its arguments.
"""

import compileall
import json
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import anyio
import sqlalchemy as sa
from typer.testing import CliRunner

from agentic_rag.base.settings import Settings
from agentic_rag.cli import app
from agentic_rag.testing.steps import Step, Use, say
from tests.command_page import PAGE as COMMANDS
from tests.formats_page import PAGE as FORMATS
from tests.server.rig import Rig
from tests.settings_page import PAGE as SETTINGS


async def use_all(folder: Path) -> None:
    call = Step((Use("greet_person", {"name": "Ann"}),))
    async with Rig(folder, call, say("Done."), say("Again.")) as rig:
        rig.application.begin()
        domain = await rig.domain(greetingStyle="cool")
        domain_view = await rig.ok("GET", f"/api/domains/{domain}")
        assert domain_view["settings"]["greetingStyle"] == "cool"
        assert (await rig.refused("PATCH", f"/api/domains/{domain}", {"settings": {"greetingStyle": "x"}}))[0] == 422

        assert (await rig.ok("GET", f"/api/domains/{domain}/greetings"))["items"] == [f"hello {domain}"]
        paths = (await rig.ok("GET", "/api/openapi.json"))["paths"]
        assert "get" in paths["/api/domains/{domain}/greetings"]

        document = await rig.upload(domain, "a.greeting", b"srewolf fo draziw eht")
        assert document["status"] == "indexed", document
        path = f"/api/domains/{domain}/documents/{document['id']}/chunks"
        assert "wizard of flowers" in (await rig.ok("GET", path))["items"][0]["text"]
        assert ".greeting" in str(await rig.ok("GET", "/api/document-formats"))

        conversation = await rig.conversation(domain)
        events = await rig.say(conversation, "Greet Ann")
        assert [event["spokenWords"] for event in events if event["type"] == "greeted"] == ["hello there"]
        (result,) = [event for event in events if event["type"] == "tool_result"]
        assert (result["status"], result["content"]) == ("ok", "hello Ann")

        answer = await rig.http.post(
            f"/api/conversations/{conversation}/messages?dialect=greeting", json={"content": "Again"}
        )
        assert "data: hello done" in answer.text

        refusal = await rig.refused("GET", f"/api/domains/{domain}/greetings/Ben")
        assert refusal[:2] == (409, "GREETING_REFUSED")
        messages = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
        message = next(entry["id"] for entry in messages if entry["role"] == "assistant")
        await rig.ok("PUT", f"/api/conversations/{conversation}/messages/{message}/feedback", {"rating": "up"})
        (feedback,) = (await rig.ok("GET", f"/api/domains/{domain}/feedback"))["items"]
        assert feedback["mood"] == "merry"

    with sa.create_engine(f"sqlite:///{folder}/data/agentic-rag.db").connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM greetings")).scalar() == 0


def run_scripts(scripts: list[list[str]]) -> None:
    """Run scripts of the copy, each as its own ``__main__``."""
    for script in scripts:
        sys.argv = script
        runpy.run_path(script[0], run_name="__main__")


def main() -> None:
    _, folder, scripts = sys.argv
    with redirect_stdout(sys.stderr):
        run_scripts(json.loads(scripts))
    # The processes that read documents have little CPU time, and may not write what they compile.
    assert compileall.compile_dir("agentic_rag", quiet=1)
    assert compileall.compile_dir("mcp_servers", quiet=1)
    assert getattr(Settings(_env_file=None), "greeting_seconds") == 7  # noqa: B009 - only the copy has this setting
    assert "`AGENTIC_RAG_GREETING_SECONDS`" in SETTINGS.read_text("utf-8")
    assert ".greeting" in FORMATS.read_text("utf-8")
    assert CliRunner().invoke(app, ["greet", "Ann"]).output == "hello Ann\n"
    assert "## greet" in COMMANDS.read_text("utf-8")
    anyio.run(use_all, Path(folder))
    sys.stdout.write("all recipes work\n")


if __name__ == "__main__":
    main()
