"""Every complete example in docs/clients runs unchanged against the server that its reader would start."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.clients.examples import PAGES, Example, all_examples, read_examples
from tests.e2e.serving import serving

PATIENCE = 240.0
"""Seconds after which an example counts as hanging."""

EXAMPLES = all_examples()


@pytest.fixture(scope="module")
def example_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of an example: the address of a server with the demo, and the key of a member.

    The key also permits a second domain, ``AGENTIC_RAG_DOMAIN``, whose searches need approval.
    """
    folder = tmp_path_factory.mktemp("examples")
    with serving(folder / "data", AGENTIC_RAG_EMBEDDING="none") as server:
        anyio.run(server.wait_until_indexed)
        rules = {"toolPolicy": {"search_documents": "ask"}}
        asking = str(server.call("POST", "/api/domains", {"name": "Asking", "settings": rules})["id"])
        created = server.call("POST", "/api/keys", {"user": "ann", "role": "member", "domains": ["demo", asking]})
        yield {"AGENTIC_RAG_URL": server.url, "AGENTIC_RAG_KEY": str(created["key"]), "AGENTIC_RAG_DOMAIN": asking}


@pytest.mark.parametrize("example", EXAMPLES, ids=[each.name for each in EXAMPLES])
def test_an_example_works_as_its_page_says(example: Example, example_server: dict[str, str], tmp_path: Path) -> None:
    inherited = {name: text for name, text in os.environ.items() if "KEY" not in name and "PROXY" not in name.upper()}
    result = subprocess.run(
        example.write(tmp_path),
        cwd=tmp_path,
        env={**inherited, **example_server, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    output = f"{result.stdout}\n{result.stderr}"[-4000:]
    assert result.returncode == 0, output
    assert example.find_unprinted(result.stdout) is None, (
        f"not printed: {example.find_unprinted(result.stdout)}\n{output}"
    )


OVERVIEWS = {"README", "standards"}
"""Pages about all doors."""


def test_every_page_is_listed_and_has_an_example() -> None:
    readme = (PAGES / "README.md").read_text("utf-8")
    for path in PAGES.glob("*.md"):
        if path.stem not in OVERVIEWS:
            assert f"]({path.name})" in readme, f"{path.name} is not in the table of doors"
            assert any(example.page == path.stem for example in EXAMPLES), f"{path.name} has no complete example"


COMPLETE = OVERVIEWS | {"authentication", "native", "observable", "rest", "durable-streams"}
"""Pages whose examples print a complete answer, or use no stream."""


def test_every_page_of_a_format_lists_what_it_does_not_carry() -> None:
    for path in PAGES.glob("*.md"):
        if path.stem not in COMPLETE:
            assert "not carried" in path.read_text("utf-8").lower(), path.name


@pytest.mark.parametrize(
    "text",
    [
        "```python complete\nprint(1)\n```\n",
        "```python complete\nprint(1)\n```\n\n```text output\n\n```\n",
        "```python complete\nprint(1)\n```\n\n```json\n{}\n```\n",
        "```text output\n1\n```\n",
        "```ruby complete\nputs 1\n```\n",
    ],
)
def test_an_example_without_output_or_without_a_runner_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="page"):
        read_examples("page", text)


def test_an_output_has_the_expected_lines_in_order() -> None:
    text = "```python complete\nprint(1)\n```\n\n```text output\none\ntwo … four\n```\n"
    (example,) = read_examples("page", text)
    assert example.find_unprinted("zero\none\nx\ntwo and three, four\n") is None
    assert example.find_unprinted("two and three, four\none\n") == "two … four"
    assert example.find_unprinted("one more\n") == "one"
