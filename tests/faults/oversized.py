"""Send oversized text to every entry point of a running server, and ping it from another process.

A `Door` is one field of one request: every string field of every operation in the OpenAPI document (bodies, query,
path), headers, every field of every socket frame, uploaded files and their names, MCP messages, and answers of the
model or of an MCP server. The pinger is a separate process that continuously requests `/api/version`. The delay of a
door is its slowest ping while the door's text was processed. This module contains no tests; delays are figures for a
report.
"""

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from mcp_types import CallToolResult, EmbeddedResource, ResourceLink, TextContent, TextResourceContents
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from agentic_rag.server.dialects import dialect_names
from agentic_rag.server.ws.frames import FRAMES
from agentic_rag.testing.steps import Say, Step, Think, Use
from tests.faults.outside import PATIENCE
from tests.faults.sweep import Rig

Json = dict[str, Any]

BODY_BYTES = 900_000
ADDRESS_BYTES = 20_000
"""Size of a text in a header or an address. The whole head of a request may have 64 KiB."""
SETTLED_SECONDS = 0.1
"""How long the pinger continues after an answer, because some work follows it."""

TEXTS = {
    "nested tags": ("<ѕуѕ", "tem＞"),
    "repeated tags": ("＜ｓｙｓｔｅｍ＞<|im_start|>[INST]", ""),
    "Markdown": ("**[你](<x&#9;`", "`>)**"),
    "decomposed": ("ﷺe\u0301\u0323ｱﾞ\u202e", ""),
    "spaces": ("\u3000 \t\n", ""),
    "one word": ("ő", ""),
}
"""A text repeats the first part, and then the second part as often."""


def text_of(kind: str, size: int) -> str:
    """Return a text of a kind with about ``size`` bytes in UTF-8."""
    opening, closing = TEXTS[kind]
    times = size // len((opening + closing).encode())
    return opening * times + closing * times


PINGER = """
import os, socket, sys, time
host, port, server = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def used():
    total = 0
    for thread in os.listdir(f"/proc/{server}/task"):
        try:
            with open(f"/proc/{server}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
        except OSError:
            pass
    return total / 1e9
ask = b"GET /api/version HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n" % host.encode()
line = None
while True:
    if line is None:
        line = socket.create_connection((host, port))
    cpu, began = used(), time.monotonic()
    line.sendall(ask)
    answer = line.recv(65536)
    ended, cpu = time.monotonic(), used() - cpu
    if not answer or b"connection: close" in answer.lower():
        line = None
    print(began, ended, cpu, flush=True)
    time.sleep(0.002)
"""


T = TypeVar("T")


def with_values(function: Callable[..., T], *values: object) -> Callable[[str], T]:
    """Return a function of a text only, with the current values as the other arguments."""
    return lambda text: function(text, *values)


@dataclass(frozen=True)
class Ping:
    """One request by the pinger. ``cpu``: seconds that the server's threads ran meanwhile.

    On a loaded machine a ping takes longer than the server delays it. ``cpu`` does not depend on other programs.
    """

    began: float
    ended: float
    cpu: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass
class Pinger:
    """The pinging process. ``slowest`` reads its output."""

    process: subprocess.Popen[str]
    pings: list["Ping"] = field(default_factory=list)

    def slowest(self, since: float) -> "Ping":
        """Return the slowest ping that ended after ``since``. Wait for a ping that begins after now."""
        asked_at = time.monotonic()
        assert self.process.stdout is not None
        while not self.pings or self.pings[-1].began < asked_at:
            self.pings.append(Ping(*map(float, self.process.stdout.readline().split())))
        recent = [ping for ping in self.pings if ping.ended >= since]
        self.pings = self.pings[-1:]
        return max(recent, key=lambda ping: ping.seconds)


@contextmanager
def pinging(url: str, server: int) -> Iterator[Pinger]:
    """Ping a server from a separate process until the block ends. ``server``: its process id."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    process = subprocess.Popen(
        [sys.executable, "-c", PINGER, host, port, str(server)], stdout=subprocess.PIPE, text=True
    )
    try:
        yield Pinger(process)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@dataclass(frozen=True)
class Door:
    """One entry point for a text. ``knock`` sends the text and returns the answer."""

    name: str
    knock: Callable[[str], str]
    size: int = BODY_BYTES


@dataclass(frozen=True)
class Delay:
    """The delay in seconds that a text at a door causes for others, as the minimum of several attempts.

    ``cpu``: the CPU time of the server during the slowest ping.
    """

    door: str
    kind: str
    answered: str
    seconds: float
    cpu: float

    @property
    def due_to_server(self) -> float:
        """The part of the delay for which the server used the CPU."""
        return min(self.seconds, self.cpu)


def idle(rig: Rig, pinger: Pinger, seconds: float = 5.0) -> list[float]:
    """Return the slowest ping of each tenth of a second without other requests."""
    slowest = []
    for _ in range(round(seconds / SETTLED_SECONDS)):
        start = time.monotonic()
        time.sleep(SETTLED_SECONDS)
        slowest.append(pinger.slowest(start).seconds)
    return slowest


def measure(door: Door, kind: str, pinger: Pinger, bound: float, attempts: int = 4) -> Delay:
    """Send a text to a door. If it delays others longer than ``bound``, send it again and use the minimum."""
    least_delay: Delay | None = None
    for _ in range(attempts):
        start = time.monotonic()
        answer = door.knock(text_of(kind, door.size))
        time.sleep(SETTLED_SECONDS)
        slowest = pinger.slowest(start)
        delay = Delay(door.name, kind, answer, slowest.seconds, slowest.cpu)
        least_delay = (
            delay if least_delay is None else min(least_delay, delay, key=lambda candidate: candidate.due_to_server)
        )
        if least_delay.due_to_server <= bound:
            break
    assert least_delay is not None
    return least_delay


def slow_callbacks(path: Path, after: int) -> tuple[list[Json], int]:
    """Return the slow callbacks that the server recorded in a file after a position, and the file's new end."""
    if not path.exists():
        return [], after
    with path.open("rb") as file:
        file.seek(after)
        lines, _, _ = file.read().rpartition(b"\n")
    return [json.loads(line) for line in lines.splitlines()], after + len(lines) + bool(lines)


class Http:
    """Sends requests unchanged, each over its own connection."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._address = host, int(port)
        self.url = url

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> str:
        """Send a request and return its status, or its failure."""
        line = http.client.HTTPConnection(*self._address, timeout=PATIENCE)
        try:
            line.request(method, path, body, {"Content-Type": "application/json", **headers})
            answer = line.getresponse()
            answer.read(200_000)
            return str(answer.status)
        except (OSError, http.client.HTTPException) as exc:
            return type(exc).__name__
        finally:
            line.close()

    def json(self, method: str, path: str, value: object, **headers: str) -> str:
        return self.send(
            method, path, json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"), **headers
        )


# Every field of every operation


def fields_of(schema: Json, document: Json, depth: int = 4) -> Iterator[tuple[str, Callable[[str], object]]]:
    """Yield the name of each string field in a JSON schema, and a function that creates the value with a text there."""
    if "$ref" in schema:
        schema = _resolve(schema, document)
    for alternative in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from fields_of(alternative, document, depth)
    kind = schema.get("type")
    if kind == "string" or not (schema.keys() & {"type", "anyOf", "oneOf", "allOf", "properties"}):
        yield "", lambda text: text
    if depth and kind == "array":
        for name, make in fields_of(schema.get("items", {}), document, depth - 1):
            yield f"[]{name}", with_values(lambda text, make: [make(text)], make)
    if depth and (kind == "object" or "properties" in schema):
        properties = schema.get("properties", {})
        names = [*schema.get("required", ()), *(KNOWN.keys() & properties.keys())]
        required_values = {key: KNOWN.get(key, example(properties.get(key, {}), document)) for key in names}
        for key, inner in properties.items():
            for name, make in fields_of(inner, document, depth - 1):
                yield (
                    f".{key}{name}",
                    with_values(lambda text, key, make: {**required_values, key: make(text)}, key, make),
                )
        yield ".(key)", lambda text: {**required_values, text: "x"}
        if schema.get("additionalProperties"):
            yield ".(value)", lambda text: {**required_values, "x": text}


def _resolve(schema: Json, document: Json) -> Json:
    part_schema: Json = document
    for part in schema["$ref"].removeprefix("#/").split("/"):
        part_schema = part_schema[part]
    return part_schema


def example(schema: Json, document: Json, depth: int = 6) -> object:
    """Return a small value that fits a schema's types."""
    if "$ref" in schema:
        schema = _resolve(schema, document)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    for alternative in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        return example(alternative, document, depth - 1)
    match schema.get("type"):
        case "array":
            return [example(schema.get("items", {}), document, depth - 1)] if schema.get("minItems") else []
        case "object":
            required = schema.get("required", ()) if depth else ()
            return {
                key: KNOWN.get(key, example(schema["properties"].get(key, {}), document, depth - 1)) for key in required
            }
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case "null":
            return None
    return "x"


def operation_doors(http: Http, document: Json, ids: dict[str, str]) -> Iterator[Door]:
    """Yield a door for each text in body, query and path of each operation that deletes nothing."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method not in ("get", "post", "put", "patch"):
                continue
            yield from _doors_of(http, document, ids, method.upper(), path, operation)


KNOWN: Json = {}
"""Values for fields with these names that let a request pass its first checks. `furnish` fills it."""


def _doors_of(
    http: Http, document: Json, ids: dict[str, str], method: str, path: str, operation: Json
) -> Iterator[Door]:
    parameters = operation.get("parameters", [])
    real = path
    for parameter in parameters:
        if parameter["in"] == "path":
            real = real.replace(f"{{{parameter['name']}}}", ids.get(parameter["name"], "x"))
    for parameter in parameters:
        label = f"{method} {path} {parameter['in']}:{parameter['name']}"
        if parameter["in"] == "query":
            yield Door(
                label,
                with_values(lambda text, name: http.send(method, f"{real}?{name}={quote(text)}"), parameter["name"]),
                ADDRESS_BYTES,
            )
        elif parameter["in"] == "path":
            before, _, after = path.partition(f"{{{parameter['name']}}}")
            for name, value in ids.items():
                before, after = before.replace(f"{{{name}}}", value), after.replace(f"{{{name}}}", value)
            yield Door(
                label,
                with_values(
                    lambda text, before, after: http.send(method, before + quote(text, safe="") + after, b"{}"),
                    before,
                    after,
                ),
                ADDRESS_BYTES,
            )
    content = operation.get("requestBody", {}).get("content", {})
    for media, definition in content.items():
        if media == "application/json":
            label = f"{method} {path} body"
            yield Door(f"{label} (as text)", lambda text: http.send(method, real, text.encode()))
            yield Door(f"{label} (a string)", lambda text: http.json(method, real, text))
            names: set[str] = set()
            for name, make in fields_of(definition.get("schema", {}), document):
                if name in names:
                    continue
                names.add(name)
                yield Door(f"{label}{name}", with_values(lambda text, make: http.json(method, real, make(text)), make))
        else:
            yield Door(
                f"{method} {path} {media}",
                with_values(
                    lambda text, media: http.send(method, real, text.encode(), **{"Content-Type": media}), media
                ),
            )


HEADERS = (
    "Accept", "Accept-Language", "Authorization", "Content-Type", "Cookie", "If-Match", "If-None-Match",
    "Last-Event-ID",
    "Mcp-Session-Id", "Origin", "Range", "Referer", "Sec-WebSocket-Protocol", "Traceparent", "Tracestate", "User-Agent",
    "X-Forwarded-For", "X-Request-Id", "X-Anything",
)  # fmt: skip


def header_doors(http: Http) -> Iterator[Door]:
    """Yield a door for each header that the server reads. Bytes beyond ASCII are sent unchanged."""
    for name in HEADERS:
        for prefix in ("Bearer ", "agentic-rag=", "") if name in ("Authorization", "Cookie") else ("",):
            yield Door(
                f"header {name}: {prefix}",
                with_values(
                    lambda text, name, prefix: http.send(
                        "GET", "/api/domains", **{name: prefix + _one_line(text).encode().decode("latin-1")}
                    ),
                    name,
                    prefix,
                ),
                ADDRESS_BYTES,
            )


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ")


def message_doors(http: Http, ids: dict[str, str]) -> Iterator[Door]:
    """Yield a door for each text in whole requests of protocols for which generic bodies do not suffice."""
    domain = ids["domain"]
    hello = {"role": "user", "content": "Hello x plain"}
    chats: dict[str, Callable[[str], Json]] = {
        "system": lambda text: {"messages": [{"role": "system", "content": text}, hello]},
        "developer, in parts": lambda text: {
            "messages": [{"role": "developer", "content": [{"type": "text", "text": text}]}, hello]
        },
        "user": lambda text: {"messages": [{"role": "user", "content": text + " x plain"}]},
        "earlier": lambda text: {"messages": [hello, {"role": "assistant", "content": text}, hello]},
        "image": lambda text: {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}],
                }
            ]
        },
    }
    for name, make in chats.items():
        yield Door(
            f"chat completion: {name}",
            with_values(
                lambda text, make: http.json("POST", "/v1/chat/completions", {"model": domain, **make(text)}), make
            ),
        )
    for name, parameter in {
        "instructions": "instructions",
        "input": "input",
        "previous": "previous_response_id",
    }.items():
        yield Door(
            f"response: {name}",
            with_values(
                lambda text, more: http.json(
                    "POST", "/v1/responses", {"model": domain, "input": "Hello x plain", more: text}
                ),
                parameter,
            ),
        )
    run: Json = {
        "threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}, "messages": [],
    }  # fmt: skip
    question = [{"id": "1", **hello}]
    runs: dict[str, Callable[[str], Json]] = {
        "content": lambda text: {"messages": [{"id": "1", "role": "user", "content": text}]},
        "context": lambda text: {"messages": question, "context": [{"description": text, "value": "x"}]},
        "state": lambda text: {"messages": question, "state": {"a": text}},
        "earlier": lambda text: {"messages": [{"id": "0", "role": "assistant", "content": text}, *question]},
        "role": lambda text: {"messages": [{"id": "0", "role": text, "content": "x"}, *question]},
        "threadId": lambda text: {"messages": question, "threadId": text},
    }
    for name, make in runs.items():
        for path in (f"/api/domains/{domain}/ag-ui", f"/ag-ui/{domain}"):
            yield Door(
                f"AG-UI {path}: {name}",
                with_values(lambda text, path, make: http.json("POST", path, run | make(text)), path, make),
            )
    conversation = f"/api/conversations/{ids['conversation']}"
    yield Door("message", lambda text: http.json("POST", f"{conversation}/messages", {"content": text + " x plain"}))
    yield Door("title", lambda text: http.json("PATCH", conversation, {"title": text}))
    yield Door("render", lambda text: http.json("POST", "/api/render", {"markdown": text, "text": text}))
    yield Door(
        "prompt component",
        lambda text: http.json("PUT", f"/api/domains/{domain}/prompt-components/a.md", {"content": text[:100_000]}),
    )
    yield Door(
        "role file",
        lambda text: http.json(
            "PUT",
            f"/api/domains/{domain}/roles/x",
            {"content": f"<role><personality>{text[:60_000]}</personality></role>"},
        ),
    )
    for name in ("expertise", "primaryRoleId", "model", "greeting"):
        yield Door(
            f"setting {name}",
            with_values(
                lambda text, name: http.json("PATCH", f"/api/domains/{domain}", {"settings": {name: text}}), name
            ),
        )
    policies: dict[str, Callable[[str], Json]] = {
        "pattern": lambda text: {"toolPolicy": {text: "allow"}},
        "pattern of a star and letters": lambda text: {"toolPolicy": {"*a" * 400_000: "allow"}},
        "server's name": lambda text: {"mcpServers": {text: {"command": "npx", "args": ["-y", "x"]}}},
        "server's command": lambda text: {"mcpServers": {"x": {"command": text, "args": []}}},
        "server's argument": lambda text: {"mcpServers": {"x": {"command": "npx", "args": ["-y", text]}}},
        "server's address": lambda text: {"mcpServers": {"x": {"url": f"https://{text}"}}},
        "server's header": lambda text: {"mcpServers": {"x": {"url": "https://a.example", "headers": {"X": text}}}},
        "server's variable": lambda text: {
            "mcpServers": {"x": {"command": "npx", "args": ["-y", "x"], "env": {"A": "${" + text, text: "b"}}}
        },
    }
    for name, make in policies.items():
        yield Door(
            f"settings: {name}",
            with_values(
                lambda text, make: http.json("PATCH", f"/api/domains/{domain}", {"settings": make(text)}), make
            ),
        )
    for name in ("value", "name"):
        yield Door(
            f"secret's {name}",
            with_values(
                lambda text, name: http.json(
                    "PUT",
                    f"/api/domains/{domain}/secrets/{'A' if name == 'value' else quote(text[:3000])}",
                    {"value": text},
                ),
                name,
            ),
        )
    for field_name in ("query", "text", "filter", "documentIds"):
        yield Door(
            f"search {field_name}",
            with_values(
                lambda text, field_name: http.json(
                    "POST", f"/api/domains/{domain}/documents/search", {"query": "x", field_name: text}
                ),
                field_name,
            ),
        )


# Sockets, MCP, uploads


def socket_doors(http: Http, ids: dict[str, str]) -> Iterator[Door]:
    """Yield a door for each text of each frame, for whole frames, and for each dialect's socket."""
    address = http.url.replace("http", "ws") + "/ws"
    values = {
        "conversationId": ids["conversation"],
        "messageId": ids["message"],
        "turnId": ids["turn"],
        "content": "Hi",
    }

    def talk(frame: str, dialect: str = "") -> str:
        options: Json = {"compression": None, "proxy": None, "ping_interval": None, "max_size": None}
        try:
            with connect(address + (f"?dialect={dialect}" if dialect else ""), **options) as line:
                line.send(frame)
                with suppress(TimeoutError):
                    return str(json.loads(line.recv(2))["type"])
        except (WebSocketException, OSError, ValueError, KeyError) as exc:
            return type(exc).__name__
        return "silence"

    for kind, frame in FRAMES.items():
        for name in frame.model_fields:
            alias = frame.model_fields[name].alias or name
            yield Door(
                f"/ws {kind}.{alias}",
                with_values(
                    lambda text, kind, alias: talk(
                        json.dumps(
                            {"type": kind, **values, "waitId": "w", "action": "accept", alias: text}, ensure_ascii=False
                        )
                    ),
                    kind,
                    alias,
                ),
            )
    yield Door("/ws type", lambda text: talk(json.dumps({"type": text}, ensure_ascii=False)))
    yield Door("/ws frame", talk)
    for dialect in dialect_names():
        for name in ("message", "content", "query", "conversation_id", "type", "session_id"):
            yield Door(
                f"/ws?dialect={dialect} {name}",
                with_values(
                    lambda text, dialect, name: talk(
                        json.dumps({"type": "message", "content": "Hi", name: text}, ensure_ascii=False), dialect
                    ),
                    dialect,
                    name,
                ),
            )


def mcp_doors(http: Http, ids: dict[str, str]) -> Iterator[Door]:
    """Yield a door for each text of a JSON-RPC message at the MCP door."""
    path = f"/mcp/{ids['domain']}"
    accept = {"Accept": "application/json, text/event-stream"}
    begin = {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"},
    }  # fmt: skip
    messages: dict[str, Callable[[str], object]] = {
        "method": lambda text: {"jsonrpc": "2.0", "id": 1, "method": text},
        "id": lambda text: {"jsonrpc": "2.0", "id": text, "method": "ping"},
        "params": lambda text: {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"cursor": text}},
        "protocolVersion": lambda text: {
            "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin | {"protocolVersion": text}
        },
        "clientInfo": lambda text: {
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": begin | {"clientInfo": {"name": text, "version": text}},
        },
        "notification": lambda text: {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": text}},
    }  # fmt: skip
    for tool in ("search_documents", "ask", "read_document"):
        for argument in ("query", "question", "document", "name"):
            messages[f"{tool}.{argument}"] = with_values(lambda text, tool, argument: {
                "jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": {"name": tool, "arguments": {argument: text}},
            }, tool, argument)  # fmt: skip
    for name, make in messages.items():
        yield Door(
            f"POST /mcp {name}", with_values(lambda text, make: http.json("POST", path, make(text), **accept), make)
        )


def upload_doors(http: Http, ids: dict[str, str]) -> Iterator[Door]:
    """Yield a door for the name and the contents of an uploaded file, and for parts that are none."""
    path = f"/api/domains/{ids['domain']}/documents"

    def upload(name: str, content: str, field_name: str = "file", more_headers: str = "") -> str:
        head = f'--b\r\nContent-Disposition: form-data; name="{field_name}"; filename="{name}"\r\n{more_headers}\r\n'
        body = head.encode() + content.encode() + b"\r\n--b--\r\n"
        return http.send("POST", path, body, **{"Content-Type": "multipart/form-data; boundary=b"})

    yield Door("upload: file name", lambda text: upload(_one_line(text).replace('"', "") + ".md", "x"))
    yield Door("upload: long file name", lambda text: upload(_one_line(text)[:4_000] + ".md", "x"))
    yield Door("upload: field name", lambda text: upload("a.md", "x", _one_line(text)))
    yield Door("upload: part header", lambda text: upload("a.md", "x", more_headers=f"X: {_one_line(text)}\r\n"))
    for ending in ("md", "txt", "html", "csv", "json"):
        yield Door(
            f"upload: contents of .{ending}", with_values(lambda text, ending: upload(f"a.{ending}", text), ending)
        )


# Answers of the model and of an MCP server


def model_doors(rig: Rig) -> Iterator[Door]:
    """Yield a door for each text in a model's answer."""
    scripts: dict[str, Callable[[str], Step]] = {
        "text": lambda text: Step((Say(text, pieces=(text,)),)),
        "text in pieces": lambda text: Step((Say(text, pieces=tuple(_cut(text, 400))),)),
        "thinking": lambda text: Step((Think(text, pieces=(text,)), Say("Yes."))),
        "tool name": lambda text: Step((Use(text[:100_000], {}),)),
        "tool argument": lambda text: Step((Use("search_documents", {"query": text}),)),
        "remembered": lambda text: Step(
            (Use("promptx_remember", {"role": "assistant", "engrams": [{"content": text, "schema": text}]}),)
        ),
        "recalled": lambda text: Step((Use("promptx_recall", {"role": "assistant", "query": text}),)),
        "tool result": lambda text: Step((Use("counter__spend", {"key": text}),)),
    }
    for name, script in scripts.items():

        def knock(text: str, script: Callable[[str], Step] = script) -> str:
            conversation = rig.conversation()
            rig.outside.first_steps[conversation] = script(text)
            body = json.dumps({"content": f"Hello {conversation} first"}).encode()
            return Http(rig.server.url).send("POST", f"/api/conversations/{conversation}/messages", body)

        yield Door(f"model: {name}", knock)


def answer_doors(rig: Rig) -> Iterator[Door]:
    """Yield a door for each text in an MCP server's answer to a call."""
    answers: dict[str, Callable[[str], CallToolResult]] = {
        "text": lambda text: CallToolResult(content=[TextContent(text=text)]),
        "error": lambda text: CallToolResult(content=[TextContent(text=text)], is_error=True),
        "many texts": lambda text: CallToolResult(content=[TextContent(text=piece) for piece in _cut(text, 5_000)]),
        "resource": lambda text: CallToolResult(
            content=[EmbeddedResource(resource=TextResourceContents(uri="file:///x", text=text))]
        ),
        "link": lambda text: CallToolResult(
            content=[ResourceLink(uri="file:///x", name="x", title=text, description=text)]
        ),
        "structured": lambda text: CallToolResult(content=[], structured_content={"x": text}),
        "structured key": lambda text: CallToolResult(content=[], structured_content={text: "x"}),
        "structured rows": lambda text: CallToolResult(
            content=[], structured_content={"x": [f"{piece}\0" for piece in _cut(text, 50_000)]}
        ),
    }
    for name, make in answers.items():

        def knock(text: str, make: Callable[[str], CallToolResult] = make) -> str:
            conversation = rig.conversation()
            rig.outside.answers[conversation] = make(text)
            rig.outside.first_steps[conversation] = Step((Use("counter__answer", {"key": conversation}),))
            body = json.dumps({"content": f"Hello {conversation} first"}).encode()
            return Http(rig.server.url).send("POST", f"/api/conversations/{conversation}/messages", body)

        yield Door(f"MCP server: {name}", knock)


def _cut(text: str, count: int) -> Iterator[str]:
    size = len(text) // count + 1
    yield from (text[start : start + size] for start in range(0, len(text), size))


def furnish(rig: Rig) -> dict[str, str]:
    """Create the objects in the paths of operations. Return ids by the names of path parameters."""
    conversation = rig.conversation()
    body = json.dumps({"content": f"Hello {conversation} plain"}).encode()
    Http(rig.server.url).send("POST", f"/api/conversations/{conversation}/messages", body)
    messages = rig.server.messages(conversation)
    KNOWN.update(domainId=rig.domain, model=rig.domain, role="user", agentId=rig.domain, type="text")
    return {
        "domain": rig.domain,
        "conversation": conversation,
        "message": messages[0]["id"],
        "turn": messages[-1]["turnId"],
        "role": "assistant",
        "name": "x.md",
    }


def doors(rig: Rig) -> Iterator[Door]:
    """Yield all doors."""
    http, ids = Http(rig.server.url), furnish(rig)
    document = rig.server.call("GET", "/api/openapi.json")
    yield from operation_doors(http, document, ids)
    yield from message_doors(http, ids)
    yield from header_doors(http)
    yield from socket_doors(http, ids)
    yield from mcp_doors(http, ids)
    yield from upload_doors(http, ids)
    yield from model_doors(rig)
    yield from answer_doors(rig)
