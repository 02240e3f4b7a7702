"""Run ``agentic-rag`` in processes with everything already imported, because imports dominate a short run.

A helper process imports the program, uses the application once, and forks for each run. Each run is a process with its
own folder, environment, streams and exit code. Tests of the installed wheel, of ``ulimit`` and of other ASGI servers
start a new interpreter.
"""

import atexit
import errno
import functools
import gc
import importlib
import inspect
import io
import json
import logging
import os
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Self, cast

import anyio
import anyio.to_thread
import httpcore2
import httpx2

from tests.databases import without_demo
from tests.waiting import pause_thread

ROOT = Path(__file__).parents[1]
PATIENCE = 240.0
"""Time limit of a run in seconds."""

PROGRAM = "agentic_rag.cli"
IMPORTED = (
    *(PROGRAM, "agentic_rag.commands.client", "agentic_rag.commands.ingest", "agentic_rag.commands.doctor"),
    *(
        "agentic_rag.app.application",
        "agentic_rag.app.own_servers",
        "agentic_rag.domains.sign_ins",
        "agentic_rag.tools.connector",
        "agentic_rag.tools.toolset",
        "agentic_rag.app.serving",
        "alembic.command",
        "mcp.server",
        "mcp.client",
        "uvloop",
        "uvicorn",
    ),
    *("rich.table", "rich.progress", "websockets.asyncio.client"),
    # A server imports these when it first needs them: a third of the CPU time of a forked server. ``qdrant_client`` is
    # missing here, because the threads of its ``grpc`` do not survive a fork.
    *("anthropic", "aiohttp", "jsonschema"),
)
LASTING = ("agentic_rag.base.", "agentic_rag.store.")
"""Modules whose caches depend on nothing but their arguments."""
_STATUS = struct.Struct("i")
_test_runs: list[str] = []


def share_tool_schemas() -> None:
    """Compute the schemas of our MCP servers' tools once in this process, not at each start of a server.

    A start in process costs about 0.1 s of CPU, and a quarter of it was this. The schemas depend on the functions'
    source only. Tools of other modules are not cached.
    """
    from mcp.server.mcpserver.tools.base import Tool

    create = Tool.from_function.__func__  # type: ignore[attr-defined]
    if create.__name__ == "create_shared":
        return
    tools: dict[object, Tool] = {}

    def create_shared(cls: type[Tool], fn: Callable[..., Any], *args: Any, **options: Any) -> Tool:
        if not fn.__module__.startswith("mcp_servers."):
            return cast(Tool, create(cls, fn, *args, **options))
        key = (inspect.unwrap(fn).__code__, repr((args, sorted(options.items()))))
        if key not in tools:
            tools[key] = create(cls, fn, *args, **options)
        return tools[key].model_copy(update={"fn": fn})

    Tool.from_function = classmethod(create_shared)  # type: ignore[assignment, method-assign]


def share_certificates() -> None:
    """Read the authorities' certificates once in this process. Each HTTP client would do so, in 30 ms of CPU."""
    create = httpcore2.default_ssl_context

    @functools.cache
    def shared(trust_env: bool, *places: str | None) -> ssl.SSLContext:
        return create(_trust_env=trust_env)

    def create_shared(*, _trust_env: bool = True) -> ssl.SSLContext:
        return shared(_trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    httpcore2.default_ssl_context = create_shared


def _compute_tool_schemas() -> None:
    """Create our servers once, so that forked processes have the schemas."""
    from mcp_servers.promptx.server import PromptXConfig
    from mcp_servers.promptx.server import create_server as create_promptx
    from mcp_servers.retriever.server import create_server as create_retriever

    share_tool_schemas()
    unused: Any = None
    create_promptx(PromptXConfig(bound_by_meta=True))
    create_retriever(unused, library=cast(Any, object()), bound_by_meta=True)


async def _use_once(data: Path) -> None:
    """Open the application, and make the requests that most tests begin with."""
    from agentic_rag.app.application import open_application
    from agentic_rag.base.settings import load_settings
    from agentic_rag.testing.scripted import ScriptedModel
    from agentic_rag.testing.steps import say

    settings = load_settings(data=data, embedding="none", titles="message")
    async with open_application(settings, model=ScriptedModel(say("Hello."))) as application:
        transport = httpx2.ASGITransport(application.app)
        headers = {"Authorization": f"Bearer {application.access.local_key}"}
        async with httpx2.AsyncClient(base_url="http://127.0.0.1", headers=headers, transport=transport) as http:
            domain = (await http.post("/api/domains", json={"name": "Law"})).json()["id"]
            conversation = (await http.post("/api/conversations", json={"domainId": domain})).json()["id"]
            await http.post(f"/api/conversations/{conversation}/messages", json={"content": "Hello"})
            for path in ("/api/domains", "/api/health", "/api/ready", f"/api/conversations/{conversation}/messages"):
                (await http.get(path)).raise_for_status()


def _warm_up() -> None:
    """Use the application once in this process, so that forked processes have what a first use computes.

    pydantic completes models, SQLAlchemy compiles statements and routes compile their patterns at their first use.
    That was half the CPU time of a command.
    """
    before, environment = _count_threads(), dict(os.environ)
    thresholds = gc.get_threshold()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        data.mkdir(mode=0o700)
        without_demo(data)
        logging.disable()
        os.chdir(folder)  # because settings are also read from a file ``.env``
        anyio.run(_use_once, data)
        os.chdir(ROOT)
        logging.disable(logging.NOTSET)
    logging.root.handlers.clear()  # MCPServer adds one, and the programs must start without it
    logging.root.setLevel(logging.WARNING)
    os.environ.clear()
    os.environ.update(environment)
    gc.set_threshold(*thresholds)
    for name, module in list(sys.modules.items()):
        if name.startswith(("agentic_rag.", "mcp_servers.")) and not name.startswith(LASTING):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()  # some depend on the environment, which each run has for itself
    deadline = time.monotonic() + PATIENCE
    while _count_threads() > before:
        if time.monotonic() > deadline:
            raise RuntimeError(f"threads do not survive a fork: {threading.enumerate()}")
        time.sleep(0.01)


def _count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def share_helper(test_run: str) -> None:
    """Let this process use the helper of a test run. All workers do, because a helper's start costs 5 s of CPU."""
    _test_runs.append(test_run)


@functools.cache
def _helper() -> socket.socket:
    """Return a connection to the helper, which the first process that needs one starts.

    The helper ends when its owner ends: the process that started the workers, or this process without workers.
    """
    name, owner = (_test_runs[-1], os.getppid()) if _test_runs else (str(os.getpid()), os.getpid())
    address = f"\0agentic-rag-tests-{name}"  # in Linux's abstract namespace, so no file is left
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(address)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:  # else another worker has started it
                raise
        else:
            listener.listen()
            _start_helper(listener, owner)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while True:
        try:
            connection.connect(address)
        except ConnectionRefusedError:  # bound, but not listening yet
            pause_thread()
        else:
            atexit.register(connection.close)
            return connection


def _start_helper(listener: socket.socket, owner: int) -> None:
    listener.set_inheritable(True)
    variables = {name: text for name, text in os.environ.items() if not name.startswith(("AGENTIC_RAG_", "ANTHROPIC_"))}
    paths = os.pathsep.join(filter(None, [str(ROOT), variables.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "tests.programs", str(listener.fileno()), str(owner)]
    os.posix_spawn(sys.executable, command, variables | {"PYTHONPATH": paths})


class Program:
    """One run of ``agentic-rag`` with the interface of `subprocess.Popen`. Its block ends when the run ends."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
        module: str = PROGRAM,
    ) -> None:
        """Start the run.

        Args:
            arguments: the command line, without the program's name.
            cwd, env: the folder and the whole environment.
            stdin: a descriptor.
            stdout: a descriptor, `subprocess.PIPE` for text in ``stdout``, or None for this process's own.
            stderr: as ``stdout``, or `subprocess.STDOUT`.
            module: the module whose ``main()`` runs.
        """
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        closing = []
        with open(os.devnull, "rb") as nothing:
            input_descriptor = nothing.fileno() if stdin == subprocess.DEVNULL else stdin
            output = 1 if stdout is None else stdout
            if stdout == subprocess.PIPE:
                read, output = os.pipe()
                closing.append(output)
                self.stdout = io.TextIOWrapper(io.BufferedReader(io.FileIO(read)), "utf-8")
            error_output = output if stderr == subprocess.STDOUT else 2 if stderr is None else stderr
            self._status, status = os.pipe()
            closing.append(status)
            with tempfile.TemporaryFile() as description_file:  # an environment may be too long for a message
                description_file.write(json.dumps([module, list(arguments), str(cwd), dict(env)]).encode())
                description_file.flush()
                socket.send_fds(
                    _helper(), [b"run"], [description_file.fileno(), input_descriptor, output, error_output, status]
                )
                for descriptor in closing:
                    os.close(descriptor)
                start_status = os.read(self._status, _STATUS.size)
        self.pid: int = _STATUS.unpack(start_status)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.stdout is not None:
            self.stdout.close()
        self.wait(PATIENCE)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the program runs."""
        return self._look(0)

    def wait(self, timeout: float = PATIENCE) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("agentic-rag", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            end_status = os.read(self._status, _STATUS.size)
            os.close(self._status)
            (self.returncode,) = _STATUS.unpack(end_status)
        return self.returncode


def run_program(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    given: str = "",
    module: str = PROGRAM,
    timeout: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Run ``agentic-rag``, or another module's ``main()``, to its end; ``given`` is its input."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(given.encode())
        stdin.seek(0)
        streams = {"stdin": stdin.fileno(), "stdout": stdout.fileno(), "stderr": stderr.fileno()}
        program = Program(arguments, cwd=cwd, env=env, module=module, **streams)
        try:
            code = program.wait(timeout)
        except subprocess.TimeoutExpired:
            program.kill()
            raise
        outputs = []
        for file in (stdout, stderr):
            file.seek(0)
            outputs.append(file.read().decode())
    return subprocess.CompletedProcess(["agentic-rag", *arguments], code, *outputs)


async def run_victim(module: str, *arguments: object, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a test's own program, which may kill itself, to its end in the repository's folder."""
    words = [str(argument) for argument in arguments]
    return await anyio.to_thread.run_sync(partial(run_program, words, cwd=ROOT, env=env, module=module, timeout=400))


def main() -> None:
    """Run the helper: fork for each request, and send each process's id and exit status."""
    owner = os.pidfd_open(int(sys.argv[2]))
    from agentic_rag.server.web_files import WebFiles

    for name in IMPORTED:
        importlib.import_module(name)
    WebFiles().pack()  # each server compresses the page's files at its start: 0.2 s of CPU
    _compute_tool_schemas()
    share_certificates()
    httpx2.create_ssl_context(trust_env=False)
    _warm_up()
    gc.collect()
    gc.freeze()  # so that the imported objects stay in shared memory
    listener = socket.socket(fileno=int(sys.argv[1]))
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    running: dict[int, int] = {}
    clients: list[socket.socket] = []
    while True:
        sources: list[int | socket.socket] = [owner, woken, listener, *clients]
        ready = select.select(sources, [], [])[0]
        if owner in ready:
            return
        if woken in ready:
            os.read(woken, 4096)
        for pid in [pid for pid in running if _reap(pid, running[pid])]:
            del running[pid]
        if listener in ready:
            clients.append(listener.accept()[0])
        for client in [client for client in clients if client in ready]:
            message, descriptors, _, _ = socket.recv_fds(client, 16, 8)
            if message:
                _fork(running, *descriptors)
            else:
                clients.remove(client)
                client.close()


def _fork(running: dict[int, int], *descriptors: int) -> None:
    """Fork for a request, send the process's id, and add it to the running processes."""
    *streams, status = descriptors
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore SIGINT
        end_program(become_program(*streams))
    running[pid] = status
    os.write(status, _STATUS.pack(pid))
    for descriptor in streams:
        os.close(descriptor)


def _reap(pid: int, status: int) -> bool:
    ended_pid, code = os.waitpid(pid, os.WNOHANG)
    if ended_pid:
        os.write(status, _STATUS.pack(os.waitstatus_to_exitcode(code)))
        os.close(status)
    return bool(ended_pid)


def end_program(code: int) -> NoReturn:
    """End this process like an interpreter, except that no module and no object is destroyed.

    That would copy all memory that is shared with the helper: 0.15 s of CPU for each run.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # closed, or its reader has gone: the interpreter handles it
            sys.exit(code)
    os._exit(code)


def become_program(description_fd: int, stdin: int, stdout: int, stderr: int) -> int:
    """Apply the folder, environment, streams and arguments that were sent, run the program, and return its exit code.

    Other exceptions than `SystemExit` are raised, and end the process as usual.
    """
    with open(description_fd, "rb") as file:
        file.seek(0)
        module, arguments, folder, environment = json.load(file)
    for number, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, number)
    os.closerange(3, 1024)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [str(Path(sys.executable).with_name("agentic-rag")), *arguments]
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    at_once = "PYTHONUNBUFFERED" in environment
    output, errors = (io.BufferedWriter(io.FileIO(number, "w", closefd=False)) for number in (1, 2))
    sys.stdout = io.TextIOWrapper(output, "utf-8", line_buffering=at_once)
    sys.stderr = io.TextIOWrapper(errors, "utf-8", "backslashreplace", line_buffering=True)
    try:
        importlib.import_module(module).main()
    except SystemExit as exc:
        if exc.code is not None and not isinstance(exc.code, int):
            raise  # a text, which the interpreter prints
        return (exc.code or 0) & 0xFF
    return 0


if __name__ == "__main__":
    main()
