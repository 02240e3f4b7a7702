"""An MCP server that sends raw bytes, so that it can break every rule.

It uses the standard library only, to start fast. The first argument is its behaviour before any call: ``ok``,
``silent`` (answers nothing), ``deaf-to-discover`` (answers nothing of the newer era), ``no-pong`` (ignores ``ping``),
``pongs`` (answers it), ``dies`` (at once), ``noisy`` (garbage around every message), ``twice`` (lists its first tool
twice), ``says`` (its next argument in every description, schema and line of its log). The tools cause the other faults.
The variable ``STARTS`` names a file that gets a line at each start.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

BEHAVIOUR = sys.argv[1]
OUT = sys.stdout.buffer
MIB = 1024 * 1024
METHODS: list[str] = []
TOOLS = [
    "fine", "silence", "wrong_id", "garbage", "not_utf8", "lone_surrogate", "deep", "deep_id_last", "long_line",
    "endless", "crash", "half_then_crash", "not_a_result", "rpc_error", "odd_blocks", "flood_progress", "close_output",
    "grow", "vanish", "request", "chatter", "deafen", "flood", "starts",
    "wide", "asks_widely", "pid", "environment", "stop_itself", "orphan_output", "count", "batch",
]  # fmt: skip


def put(data: bytes) -> None:
    OUT.write(data + b"\n")
    OUT.flush()


def answer(ident: object, result: object) -> None:
    put(json.dumps({"jsonrpc": "2.0", "id": ident, "result": result}).encode())


def text(ident: object, value: str) -> None:
    answer(ident, {"content": [{"type": "text", "text": value}]})


def call(name: str, ident: int, params: dict[str, Any]) -> None:  # noqa: C901 - one branch a fault
    opening = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"' % ident
    closing = b'"}]}}'
    match name:
        case "fine":
            text(ident, "fine")
        case "grow":
            TOOLS.append("grown")
            put(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
            text(ident, "ok")
        case "vanish":
            TOOLS.clear()
            put(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
            text(ident, "ok")
        case "flood":
            flood(**params["arguments"])
            text(ident, "flooded")
        case "wide":
            answer(ident, {"content": [{}] * 100_000})
        case "asks_widely":
            ask = {"messages": [{}] * 100_000, "maxTokens": 1}
            put(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": ask}).encode())
            text(ident, "asked")
        case "starts":
            text(ident, "".join(METHODS))
        case "deafen":
            time.sleep(600)
        case "chatter":
            for number in range(200):
                sys.stderr.write(f"line {number} {'x' * 2000}\n")
            sys.stderr.write("\xff\x00 without end " + "y" * (3 * MIB))
            sys.stderr.flush()
            text(ident, "said")
        case "request":
            put(json.dumps({"jsonrpc": "2.0", "id": 4711, **params["arguments"]}).encode())
            text(ident, next(line for line in sys.stdin if json.loads(line).get("id") == 4711))
        case "wrong_id":
            text(ident + 1000, "not yours")
        case "garbage":
            put(b"Starting up... {not json")
            put(b"\xff\xfe\x00 binary")
            put(b"[1, 2, 3]")
            put(b"")
            text(ident, "after garbage")
        case "batch":
            log = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'
            put(b"\xef\xbb\xbf [" + log + b"," + opening + rb"in a list \ud83d, \ud83d\ude00" + closing + b"]\r")
        case "not_utf8":
            put(opening + b"caf\xe9 \xed\xa0\x80" + closing)
        case "lone_surrogate":
            put(opening + rb"a\ud800b \ud83d\ude00 \\ud800" + closing)
        case "deep":
            put(b'{"jsonrpc":"2.0","id":%d,"result":%s%s}' % (ident, b'{"a":' * 5000 + b"1", b"}" * 5000))
        case "deep_id_last":
            put(b'{"result":%s%s,"jsonrpc":"2.0","id":%d}' % (b"[" * 5000, b"]" * 5000, ident))
        case "long_line":
            size = int(params["arguments"]["mib"])
            OUT.write(opening)
            for _ in range(size):
                OUT.write(b"x" * MIB)
            put(closing)
        case "endless":
            while True:
                OUT.write(b"y" * MIB)
        case "crash":
            os._exit(3)
        case "half_then_crash":
            OUT.write(opening + b"half")
            OUT.flush()
            os._exit(3)
        case "not_a_result":
            answer(ident, {"content": 7})
        case "rpc_error":
            put(b'{"jsonrpc":"2.0","id":%d,"error":{"code":-32000,"message":"no such row"}}' % ident)
        case "odd_blocks":
            answer(ident, {"content": [
                {"type": "image", "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB", "mimeType": "image/png"},
                {"type": "image", "data": "***", "mimeType": "image/png"},
                {"type": "image", "data": "AAAA", "mimeType": "image/tiff"},
                {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
                {"type": "text", "text": "   "},
                {"type": "resource_link", "uri": "file:///a.txt", "name": "a", "description": "the letter"},
                {"type": "resource", "resource": {"uri": "file:///b.txt", "text": "inside"}},
                {"type": "resource", "resource": {"uri": "file:///c.bin", "blob": "AAAA"}},
            ]})  # fmt: skip
        case "flood_progress":
            token = params["_meta"]["progressToken"]
            for _ in range(300):
                message = {"progressToken": token, "progress": 1}
                put(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": message}).encode())
                time.sleep(0.01)
        case "pid":
            text(ident, str(os.getpid()))
        case "environment":
            answer(ident, {"content": [], "structuredContent": {**os.environ, "(pid)": str(os.getpid())}})
        case "count":  # an effect without an answer: each run adds a line to a file
            with open(params["arguments"]["journal"], "a") as journal:
                journal.write("ran\n")
        case "stop_itself":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "orphan_output":  # closes its output, which its child keeps open
            subprocess.Popen(["sleep", "600"])
            os.close(1)
            time.sleep(600)
        case "close_output":
            os.close(1)
            time.sleep(600)


def flood(what: str, count: int = 10**9, size: int = 0) -> None:
    """Send unsolicited messages as fast as possible."""
    padding = "x" * size
    messages: dict[str, dict[str, Any]] = {
        "requests": {"id": "r", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}},
        "progress": {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}},
        "log": {"method": "notifications/message", "params": {"level": "info", "data": padding}},
        "changes": {"method": "notifications/tools/list_changed"},
        "answers": {"id": 999_999, "result": {"x": padding}},
    }
    line = b"not a message" if what == "garbage" else json.dumps({"jsonrpc": "2.0", **messages[what]}).encode()
    for number in range(count):
        put(line.replace(b'"r"', str(10**6 + number).encode()))


def handle(message: dict[str, Any]) -> None:
    ident, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    METHODS.append(f"{method} ")
    if BEHAVIOUR == "noisy" and ident is not None:
        put(b"noise \xff {")
    if method == "initialize":
        info = {"name": "hostile", "version": "1"}
        answer(ident, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        schema = {"type": "object"}
        names = [*TOOLS, TOOLS[0]] if BEHAVIOUR == "twice" else TOOLS
        tools: list[dict[str, Any]] = [
            {"name": name, "inputSchema": schema, "annotations": {"readOnlyHint": True}} for name in names
        ]
        if BEHAVIOUR == "says":
            texts = {"description": sys.argv[2], "inputSchema": {**schema, "title": sys.argv[2]}}
            tools = [{**tool, **texts} for tool in tools]
            sys.stderr.write(f"{sys.argv[2]}\n")
            sys.stderr.flush()
        answer(ident, {"tools": tools})
        if BEHAVIOUR == "announces":
            put(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
    elif method == "tools/call":
        call(params["name"], int(ident or 0), params)
    elif method == "ping" and BEHAVIOUR in ("pongs", "no-pong"):
        if BEHAVIOUR == "pongs":
            answer(ident, {})
    elif ident is not None and BEHAVIOUR != "deaf-to-discover":
        put(json.dumps({"jsonrpc": "2.0", "id": ident, "error": {"code": -32601, "message": "unknown"}}).encode())


def main() -> None:
    if log := os.environ.get("STARTS"):
        with open(log, "a") as starts:
            starts.write(f"{os.getpid()}\n")
    if BEHAVIOUR == "dies":
        sys.stderr.write("cannot open the database\n")
        raise SystemExit(4)
    for line in sys.stdin:
        if BEHAVIOUR != "silent":
            handle(json.loads(line))


if __name__ == "__main__":
    main()
