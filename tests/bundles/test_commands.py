"""Two real server processes: a domain moves from one to the other, and its second export has the same bytes."""

import json
import urllib.request
from pathlib import Path

import anyio.to_thread
import pytest

from tests.e2e.serving import Server, environment, serving_without_demo
from tests.programs import run_program

from .making import DOCUMENTS, SETTINGS, TOKEN

NO_MODEL = {"AGENTIC_RAG_EMBEDDING": "none"}


async def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    env = environment(**NO_MODEL)
    done = await anyio.to_thread.run_sync(lambda: run_program(arguments, cwd=folder, env=env))
    return done.returncode, done.stdout, done.stderr


def upload(server: Server, domain: str, name: str, content: bytes) -> None:
    head = f'--x\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    body = head.encode() + content + b"\r\n--x--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    place = f"{server.url}/api/domains/{domain}/documents"
    urllib.request.urlopen(urllib.request.Request(place, body, headers, method="POST"), timeout=60).read()


@pytest.mark.sqlite("its commands have a file")
async def test_a_domain_moves_between_two_servers_and_is_the_same_bytes_again(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with serving_without_demo(one, **NO_MODEL) as first:
        made = await first.ask("POST", "/api/domains", {"name": "Law", "settings": SETTINGS})
        for name, content in DOCUMENTS.items():
            await anyio.to_thread.run_sync(upload, first, made["id"], name, content)
        code, said, warned = await run(tmp_path, "domains", "export", made["id"], "a.zip", "--data", "one")
        assert (code, "holds the domain" in said) == (0, True), warned
        again = await run(tmp_path, "domains", "export", made["id"], "a.zip", "--data", "one")
        assert (again[0], "is there already" in again[2]) == (1, True)
        nowhere = await run(tmp_path, "domains", "export", made["id"], "/proc/none/a.zip", "--data", "one")
        assert nowhere[0] == 1
        assert "The bundle" in nowhere[2]
    with serving_without_demo(two, **NO_MODEL) as second:
        would = await run(tmp_path, "domains", "import", "a.zip", "--dry-run", "--data", "two")
        assert (would[0], "+ document pump.md" in would[1]) == (0, True), would
        assert "agentic-rag secrets set DOMAIN TOOLS_AUTHORIZATION" in would[2]
        code, said, warned = await run(tmp_path, "domains", "import", "a.zip", "--data", "two")
        assert code == 0, warned
        copy = said.split()[-1]
        items = await second.indexed(copy)
        assert {each["name"] for each in items} == set(DOCUMENTS)
        assert (await run(tmp_path, "domains", "export", copy, "b.zip", "--data", "two"))[0] == 0
        over = await run(tmp_path, "domains", "import", "a.zip", "--into", copy, "--data", "two")
        assert (over[0], over[1].split()) == (0, [copy]), over
        wrong = await run(tmp_path, "domains", "import", "a.zip", "--into", copy, "--name", "x", "--data", "two")
        assert wrong[0] == 2
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert TOKEN.encode() not in (tmp_path / "a.zip").read_bytes()
    code, said, warned = await run(tmp_path, "domains", "export", copy, "c.zip", "--data", "two")  # without a server
    assert code == 0, warned
    assert (tmp_path / "c.zip").read_bytes() == (tmp_path / "a.zip").read_bytes()
    (tmp_path / "d.zip").write_bytes(b"no bundle")
    code, said, warned = await run(tmp_path, "domains", "import", "d.zip", "--data", "two")
    assert (code, "cannot be used" in warned) == (1, True)
    code, said, warned = await run(tmp_path, "doctor", "--data", "two")
    assert (code, said.splitlines()[-1]) == (0, "Everything fits together."), said
    assert json.loads((await run(tmp_path, "domains", "show", copy, "--data", "two"))[1])["name"] == "Law"
