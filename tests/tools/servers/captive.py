"""An MCP server that tries to get out, and tells what it could do. Standard library alone.

With ``--heartbeat`` it writes to ``heartbeat`` in its folder for as long as it lives, from a grandchild too.
"""

import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

BEAT = "import time\nwhile True:\n open('heartbeat', 'a').write('.')\n time.sleep(0.02)"
TOOLS = [
    "read",
    "write",
    "look",
    "connect",
    "knock",
    "environment",
    "descriptors",
    "processes",
    "run",
    "detach",
    "daemon",
    "breed",
    "fill",
]


def attempt(name: str, path: str) -> str:  # noqa: C901 - one branch a trick
    match name:
        case "read":
            with open(path, "rb") as file:
                return file.read(200).decode("utf-8", "replace")
        case "write":
            with open(path, "w") as file:
                file.write("x")
            return "written"
        case "look":
            return json.dumps(sorted(os.listdir(path)))
        case "connect":
            host, _, port = path.rpartition(":")
            socket.create_connection((host, int(port)), timeout=2).close()
            return "connected"
        case "knock":
            with socket.socket(socket.AF_UNIX) as wire:
                wire.connect(path.replace("@", "\0", 1) if path.startswith("@") else path)
            return "connected"
        case "environment":
            return json.dumps({**os.environ, "(uid)": str(os.getuid())})
        case "descriptors":
            return json.dumps(
                sorted(int(each) for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}"))
            )
        case "processes":
            return json.dumps([each for each in os.listdir("/proc") if each.isdigit()])
        case "run":
            return subprocess.run(json.loads(path), capture_output=True, text=True, check=False, timeout=5).stdout
        case "detach":
            subprocess.Popen([sys.executable, "-I", "-c", BEAT], start_new_session=True)
            return "detached"
        case "daemon":
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.execve(sys.executable, [sys.executable, "-I", "-c", BEAT], {})
                os._exit(0)
            return "detached"
        case "breed":
            return str(sum(fork() for _ in range(int(path))))
        case _:
            with open("big", "wb") as file:
                file.truncate(int(path))
            return "filled"


def fork() -> int:
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    return 1


def handle(message: dict[str, Any]) -> object:
    method, params = message.get("method"), message.get("params", {})
    if method == "initialize":
        return {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "c", "version": "1"},
        }
    if method == "tools/list":
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}
        return {"tools": [{"name": name, "description": name, "inputSchema": schema} for name in TOOLS]}
    if method == "tools/call":
        try:
            text, failed = attempt(params["name"], params.get("arguments", {}).get("path", "")), False
        except (OSError, ValueError, subprocess.SubprocessError) as exc:
            text, failed = f"{type(exc).__name__}: {exc}", True
        return {"content": [{"type": "text", "text": text}], "isError": failed}
    return None


def main() -> None:
    if "--heartbeat" in sys.argv:
        subprocess.Popen([sys.executable, "-I", "-c", BEAT])
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = handle(message)
        error = {"error": {"code": -32601, "message": "unknown"}} if result is None else {"result": result}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **error}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
