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
    result = await anyio.to_thread.run_sync(lambda: run_program(arguments, cwd=folder, env=env))
    return result.returncode, result.stdout, result.stderr


def upload(server: Server, domain: str, name: str, content: bytes) -> None:
    head = f'--x\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    body = head.encode() + content + b"\r\n--x--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    place = f"{server.url}/api/domains/{domain}/documents"
    urllib.request.urlopen(urllib.request.Request(place, body, headers, method="POST"), timeout=60).read()


@pytest.mark.sqlite("its commands have a file")
async def test_a_domain_moves_between_two_servers_and_is_the_same_bytes_again(tmp_path: Path) -> None:
    first_folder, second_folder = tmp_path / "one", tmp_path / "two"
    with serving_without_demo(first_folder, **NO_MODEL) as first:
        created = await first.ask("POST", "/api/domains", {"name": "Law", "settings": SETTINGS})
        for name, content in DOCUMENTS.items():
            await anyio.to_thread.run_sync(upload, first, created["id"], name, content)
        code, output, errors = await run(tmp_path, "domains", "export", created["id"], "a.zip", "--data", "one")
        assert (code, "holds the domain" in output) == (0, True), errors
        second_export = await run(tmp_path, "domains", "export", created["id"], "a.zip", "--data", "one")
        assert (second_export[0], "is there already" in second_export[2]) == (1, True)
        failed_export = await run(tmp_path, "domains", "export", created["id"], "/proc/none/a.zip", "--data", "one")
        assert failed_export[0] == 1
        assert "The bundle" in failed_export[2]
    with serving_without_demo(second_folder, **NO_MODEL) as second:
        preview = await run(tmp_path, "domains", "import", "a.zip", "--dry-run", "--data", "two")
        assert (preview[0], "+ document pump.md" in preview[1]) == (0, True), preview
        assert "agentic-rag secrets set DOMAIN TOOLS_AUTHORIZATION" in preview[2]
        code, output, errors = await run(tmp_path, "domains", "import", "a.zip", "--data", "two")
        assert code == 0, errors
        copy = output.split()[-1]
        items = await second.wait_until_indexed(copy)
        assert {item["name"] for item in items} == set(DOCUMENTS)
        assert (await run(tmp_path, "domains", "export", copy, "b.zip", "--data", "two"))[0] == 0
        second_import = await run(tmp_path, "domains", "import", "a.zip", "--into", copy, "--data", "two")
        assert (second_import[0], second_import[1].split()) == (0, [copy]), second_import
        refused_import = await run(
            tmp_path, "domains", "import", "a.zip", "--into", copy, "--name", "x", "--data", "two"
        )
        assert refused_import[0] == 2
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert TOKEN.encode() not in (tmp_path / "a.zip").read_bytes()
    code, output, errors = await run(tmp_path, "domains", "export", copy, "c.zip", "--data", "two")  # without a server
    assert code == 0, errors
    assert (tmp_path / "c.zip").read_bytes() == (tmp_path / "a.zip").read_bytes()
    (tmp_path / "d.zip").write_bytes(b"no bundle")
    code, output, errors = await run(tmp_path, "domains", "import", "d.zip", "--data", "two")
    assert (code, "cannot be used" in errors) == (1, True)
    code, output, errors = await run(tmp_path, "doctor", "--data", "two")
    assert (code, output.splitlines()[-1]) == (0, "Everything fits together."), output
    assert json.loads((await run(tmp_path, "domains", "show", copy, "--data", "two"))[1])["name"] == "Law"
