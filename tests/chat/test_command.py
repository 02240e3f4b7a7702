"""The command as a process: exit codes, Ctrl-C, pipes."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from agentic_rag.base.events import Error, Text
from tests.chat.serving import chat_server
from tests.programs import Program, run_program
from tests.ws.memory import Desk

PROCESS_SECONDS = 240.0
"""Seconds after which a process counts as hanging. Imports are slow on a busy machine."""


def environment(**variables: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AGENTIC_RAG_")}
    return inherited | {"PYTHONUTF8": "1"} | variables


async def run(cwd: Path, *arguments: str, stdin: str = "", **variables: str) -> tuple[int, str, str]:
    def wait() -> tuple[int, str, str]:
        result = run_program(["chat", *arguments], given=stdin, cwd=cwd, env=environment(**variables))
        return result.returncode, result.stdout, result.stderr

    return await anyio.to_thread.run_sync(wait)


async def test_one_message_is_answered_and_the_process_ends_with_0(tmp_path: Path) -> None:
    desk = Desk(lambda turn_id: desk.answer(turn_id, "Hello ", "你好"))
    async with chat_server(desk) as url:
        code, output, errors = await run(tmp_path, "demo", "Hi", "--url", url)
        assert (code, output.splitlines()[0]) == (0, "Hello 你好")
        assert "\x1b" not in output
        assert errors == "conversation conv_1\n"
        assert desk.turns["turn_1"].content == "Hi"
        code, output, errors = await run(tmp_path, "demo", "More", "--conversation", "conv_1", AGENTIC_RAG_URL=url)
        assert (code, desk.turns["turn_2"].conversation_id) == (0, "conv_1")


async def test_messages_are_read_from_a_pipe_until_it_ends(tmp_path: Path) -> None:
    desk = Desk(lambda turn_id: desk.answer(turn_id, f"answer to {desk.turns[turn_id].content}"))
    async with chat_server(desk) as url:
        code, output, _ = await run(tmp_path, "demo", "--url", url, stdin="one\n\ntwo\n")
    assert code == 0
    assert [line for line in output.splitlines() if line.startswith("answer")] == ["answer to one", "answer to two"]


async def test_a_failed_turn_ends_the_process_with_1_and_one_line(tmp_path: Path) -> None:
    desk = Desk(lambda turn_id: desk.say(turn_id, Error("LLM_SERVICE_ERROR", "overloaded", True)))
    async with chat_server(desk) as url:
        code, _, err = await run(tmp_path, "demo", "Hi", "--url", url)
        assert (code, err.splitlines()[0]) == (1, "error: LLM_SERVICE_ERROR: overloaded")
        code, _, err = await run(tmp_path, "nowhere", "Hi", "--url", url)
        assert (code, err) == (1, "error: There is no domain 'nowhere'.\n")


async def test_wrong_usage_is_2_and_a_missing_server_5(tmp_path: Path) -> None:
    assert (await run(tmp_path))[0] == 2
    code, _, err = await run(tmp_path, "demo", "Hi", "--url", "nonsense")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = await run(tmp_path, "demo", "Hi", "--url", "http://127.0.0.1:1")
    assert (code, err.count("\n")) == (5, 1)
    assert "http://127.0.0.1:1" in err


@asynccontextmanager
async def run_chat(cwd: Path, url: str) -> AsyncIterator[Program]:
    """Run a chat with one message, and end it after the block."""
    child = Program(
        ["chat", "demo", "Hi", "--url", url],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield child
    finally:
        child.kill()
        assert child.stdout is not None
        child.stdout.close()


async def wait_output(child: Program, words: str) -> None:
    """Wait until the program's output contains the words, which need not end with a line."""
    assert child.stdout is not None
    output = ""
    while words not in output:
        part = await anyio.to_thread.run_sync(os.read, child.stdout.fileno(), 4096)
        assert part, output
        output += part.decode()


async def test_ctrl_c_interrupts_the_turn_and_a_second_one_quits(tmp_path: Path) -> None:
    desk = Desk(lambda turn_id: desk.say(turn_id, Text("so far")))
    async with chat_server(desk) as url, run_chat(tmp_path, url) as child:
        await wait_output(child, "so far")
        child.send_signal(signal.SIGINT)
        assert await anyio.to_thread.run_sync(child.wait, PROCESS_SECONDS) == 130
        assert desk.turns["turn_1"].events[-1].type == "interrupted"


async def test_a_second_ctrl_c_quits_although_the_server_does_not_answer(tmp_path: Path) -> None:
    desk = Desk(lambda turn_id: desk.say(turn_id, Text("so far")))
    desk.deaf = True
    async with chat_server(desk) as url, run_chat(tmp_path, url) as child:
        await wait_output(child, "so far")
        child.send_signal(signal.SIGINT)
        await wait_output(child, "again")
        child.send_signal(signal.SIGINT)
        assert await anyio.to_thread.run_sync(child.wait, PROCESS_SECONDS) == 130
        assert not desk.turns["turn_1"].ended


def test_a_command_that_only_asks_a_server_does_not_import_the_store() -> None:
    modules = "agentic_rag.cli, agentic_rag.commands.client, agentic_rag.chat.talk, agentic_rag.chat.screen"
    script = f"import sys, {modules}; print(*{{'agentic_rag.store', 'sqlalchemy'}} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PROCESS_SECONDS)
    assert (result.returncode, result.stdout, result.stderr) == (0, "\n", "")
