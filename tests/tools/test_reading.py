"""Pasted MCP configurations: the resulting entries, the refusals, and the absence of side effects."""

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.errors import InvalidInput, PlaceholderUnset, ServerReserved
from agentic_rag.tools.entries.entry import McpEntry
from agentic_rag.tools.entries.names import is_reserved
from agentic_rag.tools.entries.placeholders import expand, find_problem, refers_only
from agentic_rag.tools.entries.reading import PastedEntries, read_entries

CORPUS = sorted((Path(__file__).parent.parent / "mcp_configs").glob("*.json"))


def to_documents(reading: PastedEntries) -> dict[str, Any]:
    """Return the entries in their stored form."""
    return {name: entry.to_json() for name, entry in reading.entries.items()}


def test_the_corpus_is_large_and_has_every_clients_shape() -> None:
    shapes = {json.loads(path.read_text("utf-8"))["shape"] for path in CORPUS}
    assert len(CORPUS) >= 40
    assert shapes >= {"Claude Desktop", "Claude Code", "Cursor", "Cline", "VS Code", "LibreChat"}


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_configurations_in_common_use_are_read(path: Path) -> None:
    case = json.loads(path.read_text("utf-8"))
    if "error" in case:
        with pytest.raises((InvalidInput, ServerReserved)) as refusal:
            read_entries(case["document"])
        path_of = getattr(refusal.value, "path", None)
        assert {"code": refusal.value.code, "path": path_of} == case["error"]
        return
    reading = read_entries(case["document"])
    assert to_documents(reading) == case["servers"]
    assert [note.path for note in reading.changes] == case["changes"]
    assert [note.path for note in reading.warnings] == case["warnings"]
    second_reading = read_entries(to_documents(reading))
    assert (second_reading.entries, second_reading.changes) == (reading.entries, ())
    assert {
        name: McpEntry.from_json(name, document) for name, document in to_documents(reading).items()
    } == reading.entries


@pytest.mark.parametrize(
    "name",
    [
        "promptx",
        "PromptX",
        " retriever\t",
        "ｐｒｏｍｐｔｘ",
        "𝓹𝓻𝓸𝓶𝓹𝓽𝔁",
        "ⓡⓔⓣⓡⓘⓔⓥⓔⓡ",
        "pro\u200bmptx",
        "\ufeffdelegate",
        "\u202edelegate",
        "dele\u00adgate",
        "prompt\u2011x",
        "prompt.x",
        "prompt․x",
        "p\u0301romptx",
        "рrоmрtх",
        "dеlеgаtе",
        "delegatᴇ",
        "ᴘrᴏᴍᴘtx",
        "retrlever",
        "retr1ever",
        "@scope/promptx",
        "https://x.example/delegate/",
    ],
)
def test_a_reserved_name_is_refused_in_every_unicode_form(name: str) -> None:
    for entry in ({"command": "x"}, {"url": "https://x.example"}, None, 5):
        with pytest.raises(ServerReserved):
            read_entries({"fine": {"command": "x"}, name: entry})
        with pytest.raises(ServerReserved):
            read_entries({"mcpServers": {name: entry}})


@pytest.mark.parametrize("name", ["prompt", "promptxyz", "my-retriever-2", "delegates", "文件"])
def test_a_distinct_name_is_not_reserved(name: str) -> None:
    assert not is_reserved(name)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("{{x}}", "${X}"),
        ("{{ user.token }}", "${TOKEN}"),
        ("${{ secrets.GH }}", "${GH}"),
        ("{env:KEY}", "${KEY}"),
        ("${X:=d}", "${VAR}"),
        ("${X-d}", "${X_D}"),
        ("${A:-${B}}", "${"),
        ("${", "${VAR}"),
        ("${1}", "${VAR_1}"),
    ],
)
def test_another_kind_of_placeholder_is_refused_with_the_one_to_use(text: str, advice: str) -> None:
    assert advice in find_problem(f"before {text} after")
    with pytest.raises(InvalidInput, match="placeholder"):
        read_entries({"x": {"command": "npx", "env": {"A": text}}})


@pytest.mark.parametrize(
    "value",
    [
        "p{{hunter2hunter2}}",
        "{{hunter2hunter2}}",
        "{{HUNTER2}}-hunter2",
        "${hunter2:hunter2hunter2}",
        "pw${hunter2-hunter2}",
        "{env:hunter2}hunter2",
        "${{hunter2}}",
        "{{ hunter2.hunter2 }}",
        "Bearer x{{HUNTER2}}",
    ],
)
def test_no_error_repeats_possible_parts_of_a_secret(value: str) -> None:
    for entry in (
        {"command": "npx", "env": {"A": value}},
        {"command": "npx", "env": [f"A={value}"]},
        {"url": "https://h/mcp", "headers": {"Authorization": value}},
        {"url": "https://h/mcp", "headers": {"Authorization": {"value": value, "secret": False}}},
    ):
        with pytest.raises(InvalidInput, match="placeholder") as refusal:
            read_entries({"x": entry})
        assert refusal.value.path in ("mcpServers.x.env.A", "mcpServers.x.headers.Authorization")
        assert "hunter2" not in str(refusal.value).casefold()
        assert "${VAR}" in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("{env:KEY}", "${KEY}"),
        ("{{API_KEY}}", "${API_KEY}"),
        ("Bearer {{ API_KEY }}", "${API_KEY}"),
        ("token ${{ secrets.GH_TOKEN }}", "${GH_TOKEN}"),
    ],
)
def test_a_misspelt_placeholder_is_refused_with_the_right_form(value: str, advice: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        read_entries({"x": {"url": "https://h/mcp", "headers": {"Authorization": value}}})
    assert f"use {advice} " in str(refusal.value)


def test_a_name_in_another_case_is_answered_with_the_existing_one() -> None:
    with pytest.raises(InvalidInput, match="another server is stored as 'a' already") as refusal:
        read_entries({"a": {"command": "x"}, "A": {"command": "x"}})
    assert refusal.value.path == "mcpServers.A"


def test_a_placeholder_is_replaced_once_and_never_from_the_environment() -> None:
    values = {"A": "${B}", "B": "b", "PATH": None}
    assert expand("${A} ${B} ${C:-c} ${D:-} $A %A%", values.get) == "${B} b c  $A %A%"
    with pytest.raises(PlaceholderUnset, match="PATH"):
        expand("${PATH}", values.get)


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("${A}", True),
        ("Bearer ${A}", True),
        ("${A}:${B}", True),
        ("sk-123${A}", False),
        ("${A:-sk-123}", False),
        ("Bearer sk-123", False),
        ("", False),
    ],
)
def test_only_a_text_without_secrets_is_shown(text: str, only: bool) -> None:
    assert refers_only(text) is only


@pytest.mark.parametrize(
    "args",
    [
        ["--api-key", "abc"],
        ["--api-key=abc"],
        ["--access_token=abc"],
        ["-e", "API_KEY=abc"],
        ["--header", "X-API-Key: abc"],
        ["ghp_0123456789abcdef0123456789abcdef0123"],
        ["redis://:hunter2@host"],
    ],
)
def test_a_secret_in_the_arguments_is_refused_with_its_path(args: list[str]) -> None:
    with pytest.raises(InvalidInput, match="never in args") as refusal:
        read_entries({"x": {"command": "npx", "args": args}})
    assert refusal.value.path.startswith("mcpServers.x.args.")
    assert "abc" not in str(refusal.value)


@pytest.mark.parametrize("args", [["--token-limit", "5"], ["-e", "API_KEY"], ["--token"], ["--tokens=5"], ["/a@b:c"]])
def test_an_argument_that_only_mentions_secrets_is_kept(args: list[str]) -> None:
    assert read_entries({"x": {"command": "npx", "args": args}}).entries["x"].to_json()["args"] == args


def test_no_message_repeats_a_value_of_env_or_headers() -> None:
    reading = read_entries({"x": {"command": "npx", "env": {"A": 12345678, "B": "<SECRET-1>"}, "z": "s"}})
    texts = f"{reading.changes}{reading.warnings}{reading!r}"
    assert "12345678" not in texts
    assert "SECRET-1" not in texts


def test_reading_starts_no_process_and_no_connection(tmp_path: Path) -> None:
    effects: list[str] = []
    own_thread = threading.get_ident()  # threads of earlier tests may still open files

    def note_effect(event: str, arguments: object) -> None:
        if (
            is_watching
            and threading.get_ident() == own_thread
            and event.partition(".")[0] in ("subprocess", "socket", "os", "open")
        ):
            effects.append(event)

    is_watching = False
    sys.addaudithook(note_effect)
    documents = [json.loads(path.read_text("utf-8"))["document"] for path in CORPUS]
    documents.append({"x": {"command": "sh", "args": ["-c", f"touch {tmp_path}/ran"]}})
    is_watching = True
    for document in documents:
        try:
            read_entries(document)
        except (InvalidInput, ServerReserved):
            continue
    is_watching = False
    assert effects == []
    assert list(tmp_path.iterdir()) == []


KEYS = (
    *("mcpServers", "servers", "mcp", "type", "transport", "command", "cmd", "args", "env", "envs", "url", "headers"),
    *("disabled", "enabled", "timeout", "timeoutMs", "tools", "includeTools", "identity", "set", "last4", "value"),
    *("secret", "include", "A", "x", "promptx", "files"),
)
TEXTS = (
    *("cmd", "npx -y a", "cmd /c cmd /c npx x", " /c ", "stdio", "http", "sse", "https://h/sse", "https://h/mcp"),
    *("${A}", "Bearer ${A}", "${A:-b}", "{{x}}", "${input:x}", "domain", "user", "true", "*", "\ud800", "a\x00"),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(TEXTS)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), inner, max_size=6)
    ),
    max_leaves=25,
)
values = (
    scalars | st.fixed_dictionaries({"value": scalars}, optional={"secret": st.booleans()}) | st.just({"set": True})
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "command": st.sampled_from(["cmd", "cmd.exe", "npx -y a", "cmd /c npx", " npx ", "x"]) | scalars,
        "args": st.lists(scalars, max_size=4),
        "env": st.dictionaries(st.sampled_from(["A", "TOKEN"]), values, max_size=3),
        "url": st.sampled_from(["https://h/mcp", "https://h/sse", "${A}/x"]),
        "headers": st.dictionaries(st.sampled_from(["A", "authorization"]), values, max_size=2),
        "disabled": st.booleans(),
        "timeout": scalars,
        "timeoutMs": scalars,
        "tools": st.lists(scalars, max_size=3) | anything,
        "type": st.sampled_from(["stdio", "http", "streamable-http", "sse", "local"]),
    },
)
documents = anything | st.dictionaries(st.text(max_size=40) | st.sampled_from(KEYS), entries, max_size=3)


@given(documents)
def test_any_json_is_read_or_refused_and_round_trips(document: Any) -> None:
    try:
        reading = read_entries(document)
    except (InvalidInput, ServerReserved):
        return
    second_reading = read_entries(to_documents(reading))
    assert second_reading.entries == reading.entries
    assert second_reading.changes == ()


def test_json_nested_beyond_any_limit_is_refused_not_crashed_on() -> None:
    deep: Any = "x"
    for _ in range(50_000):
        deep = [deep]
    for document in (
        deep,
        {"x": deep},
        {"x": {"cmd": deep, "command": deep}},
        {"x": {"url": deep, "env": {"A": deep}}},
    ):
        with pytest.raises(InvalidInput):
            read_entries(document)
