"""The first five minutes in the terminal: the real server, no key, the demo domain."""

from pathlib import Path

import anyio

from tests.chat.test_command import run
from tests.e2e.serving import serving, serving_without_demo


async def test_the_demo_shows_role_recall_search_and_a_numbered_citation(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as server:
        await server.wait_until_indexed()
        code, output, _ = await run(tmp_path, "demo", "整机保修几年？", "--data", str(data))
    assert code == 0
    for line_start in ("→ promptx_action(", "→ promptx_recall(", "→ search_documents(", "[1] 售后服务手册.md"):
        assert line_start in output
    passage = output[output.index("[1] 售后服务手册.md") :].splitlines()[1].strip()
    assert f"{passage}[1]" in output


async def test_a_lost_server_has_a_plain_error(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving_without_demo(data) as server:
        url = server.url
    with anyio.fail_after(240):
        code, _, err = await run(tmp_path, "demo", "Hi", "--url", url, "--data", str(data))
    assert code == 5
    assert err.startswith(f"error: No server answers at {url}")
