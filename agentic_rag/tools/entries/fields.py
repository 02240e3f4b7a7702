"""The fields of one pasted MCP entry: each read tolerantly, each in one strict form. Pure.

Owns types, units, the rule that secrets stand in ``env`` and ``headers`` only, and the notes of what was changed.
No note and no error repeats a value of ``env`` or ``headers``.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from agentic_rag.errors import InvalidInput
from agentic_rag.tools.entries.placeholders import expand, placeholders, problem, refers_only

MAX_TEXT = 8_000
MAX_ITEMS = 100
MAX_TIMEOUT_MS = 3_600_000
SECONDS_BELOW = 1000
"""A bare ``timeout`` below this is taken for seconds: no client waits less than a second, none 1 000 s."""

OTHER_KEYS = frozenset(
    {"disabled", "timeout", "timeoutSeconds", "includeTools", "excludeTools", "allowedTools", "disabledTools"}
)
"""Keys that are understood but not stored under their name."""

_KINDS = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamablehttp": "http",
    "streamable_http": "http",
    "remote": "http",
    "sse": "sse",
}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_SECRET_WORD = r"(?:api[-_]?key|apikey|access[-_]?key|secret[-_]?key|token|secret|password|passwd|pwd|credentials?)"
_SECRET_FLAG = re.compile(rf"--?(?:[a-z0-9]+[-_])*{_SECRET_WORD}(=.+)?", re.IGNORECASE | re.DOTALL)
_SECRET_TEXT = re.compile(
    rf"(?:[a-z0-9]+[-_.])*{_SECRET_WORD}\s*=.+"  # NAME=value
    r"|(?:.*\s)?(?:proxy-)?authorization\s*[:=].+|x-api-key\s*:.+"
    r"|(?:sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abps]|npm|hf|tvly|AIza|AKIA)[-_]?[A-Za-z0-9_-]{16,}",
    re.IGNORECASE | re.DOTALL,
)
_PASSWORD_IN_URL = re.compile(r"[a-z][a-z0-9+.-]{0,20}://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)
_SECRET_QUERY = re.compile(rf"(?:.*[-_.])?{_SECRET_WORD}|.*(?:apikey|accesstoken|authtoken)|key|auth", re.IGNORECASE)
_LINE = re.compile(r"[\w.@-]+[ \t][^\"'\\|&;<>$`]*")
"""A command with arguments in one text, and nothing in it that a shell would read."""
_SAMPLE = re.compile(r"<[^<>]{1,60}>|(?:your|my)[-_ ].{1,50}|.{0,40}[-_ ]here|x{6,}|\.{3}|changeme", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Note:
    """``path`` of the place, ``text`` for the admin; never holds a secret."""

    path: str
    text: str


@dataclass(slots=True)
class Notes:
    """What a reading has to tell."""

    changes: list[Note] = field(default_factory=list)
    warnings: list[Note] = field(default_factory=list)

    def change(self, path: str, text: str) -> None:
        self.changes.append(Note(path, text))

    def warn(self, path: str, text: str) -> None:
        self.warnings.append(Note(path, text))

    def unused(self, path: str, advice: str) -> None:
        """Tell that a key is not used."""
        self.warnings.append(Note(path, f"this key is not used{': ' + advice if advice else ''}."))


def shown(key: str) -> str:
    """Return a key as it may stand in a path: short, and without anything that a terminal would obey."""
    return "".join(char if char.isprintable() else "�" for char in key[:80])


def same(one: object, other: object) -> bool:
    """Whether two JSON values are equal; ``1`` and ``true`` are not."""
    try:
        return type(one) is type(other) and one == other
    except RecursionError:  # nested deeper than anything that means something here
        return False


def mapping(value: object, path: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(path, "a JSON object is expected.")
    return value


def text(value: object, path: str, notes: Notes, *, secret: bool = False) -> str:
    """Return a text; numbers and truth values become one, as in a shell. ``secret``: no message repeats any of it."""
    if isinstance(value, bool):
        notes.change(path, "a truth value became text.")
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) < 1 << 63:
        notes.change(path, "a number became text.")
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        notes.change(path, "a number became text.")
        return json.dumps(value)
    if not isinstance(value, str):
        raise InvalidInput(path, "a text is expected.")
    if len(value) > MAX_TEXT:
        raise InvalidInput(path, f"{len(value)} characters; at most {MAX_TEXT} are possible.")
    if any(char == "\x00" or "\ud800" <= char <= "\udfff" for char in value):
        raise InvalidInput(path, "NUL characters and lone surrogates are not possible.")
    wrong = problem(value, secret=secret)
    if wrong:
        raise InvalidInput(path, wrong)
    return value


def kind(given: Mapping[str, object], path: str, notes: Notes) -> str:
    """Return the type of a server, told or inferred."""
    told = given.get("type")
    if told is None:
        return _inferred(given, path, notes)
    if not isinstance(told, str) or told.strip().lower() not in _KINDS:
        raise InvalidInput(f"{path}.type", "one of stdio, http and sse is expected.")
    found = _KINDS[told.strip().lower()]
    if found != told:
        notes.change(f"{path}.type", f"read as {found!r}.")
    return found


def _inferred(given: Mapping[str, object], path: str, notes: Notes) -> str:
    has_command, has_url = bool(given.get("command")), bool(given.get("url"))
    if has_command and has_url:
        raise InvalidInput(f"{path}.url", "an entry has either a command or a url, not both.")
    if has_command:
        notes.change(f"{path}.type", "'stdio', since there is a command.")
        return "stdio"
    if not has_url:
        raise InvalidInput(path, "a server needs a command or a url.")
    address = given["url"]
    if isinstance(address, str) and address.partition("?")[0].rstrip("/ ").lower().endswith("/sse"):
        notes.warn(f"{path}.type", "'sse' was assumed, since the url ends in /sse; most servers speak 'http' now.")
        return "sse"
    notes.change(f"{path}.type", "'http', since there is a url.")
    return "http"


def command_line(given: Mapping[str, object], path: str, notes: Notes) -> tuple[str, list[str]]:
    """Return the program and its arguments."""
    command = given.get("command")
    args = _items(given.get("args"), f"{path}.args", notes)
    place = f"{path}.command"
    if isinstance(command, list | tuple):
        words = _items(command, place, notes)
        command, args = words[0] if words else "", [*words[1:], *args]
        notes.change(place, "a list became a command and its args.")
    command = text(command, place, notes)
    while (simpler := _simpler(command, args)) is not None:
        command, args, what = simpler
        notes.change(place, what)
    if not command:
        raise InvalidInput(place, "a program is expected.")
    _no_secret([command], place)
    _no_secret(args, f"{path}.args")
    if any(re.match(r"mcp-remote(@|$)", arg) for arg in args):
        notes.warn(f"{path}.args", "mcp-remote is not needed: an entry with a url connects by itself.")
    return command, args


def _simpler(command: str, args: list[str]) -> tuple[str, list[str], str] | None:
    """Return a command line that means the same, and what was changed; None: there is no simpler one."""
    if command != command.strip():
        return command.strip(), args, "spaces around it were removed."
    if not args and _LINE.fullmatch(command):
        return command.split()[0], command.split()[1:], "a line became a command and its args."
    if command.lower() in ("cmd", "cmd.exe") and len(args) > 1 and args[0].lower() == "/c":
        return args[1], args[2:], "started without cmd /c, which only Windows has."
    return None


def _items(value: object, path: str, notes: Notes) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise InvalidInput(path, "a list of texts is expected.")
    if len(value) > MAX_ITEMS:
        raise InvalidInput(path, f"{len(value)} items; at most {MAX_ITEMS} are possible.")
    return [text(item, f"{path}.{index}", notes) for index, item in enumerate(value)]


def _no_secret(args: list[str], path: str) -> None:
    """Refuse what looks like a secret in a command line, which every process of the machine can read."""
    for index, arg in enumerate(args):
        flag = _SECRET_FLAG.fullmatch(arg)
        follows = flag is not None and flag[1] is None and index + 1 < len(args) and args[index + 1][:1] != "-"
        if (flag and flag[1]) or follows or _SECRET_TEXT.fullmatch(arg) or _PASSWORD_IN_URL.search(arg):
            place = path if path.endswith(".command") else f"{path}.{index + follows}"
            raise InvalidInput(place, "this looks like a secret; secrets stand in env (or headers), never in args.")


def url(value: object, path: str, notes: Notes) -> str:
    """Return an http or https address without secrets."""
    address = text(value, path, notes) if value is not None else ""
    if address != address.strip():
        notes.change(path, "spaces around it were removed.")
        address = address.strip()
    try:
        parts = urlsplit(_as_it_may_be(address))
        host, user = parts.hostname, parts.username
    except ValueError:
        host, user = None, None
    if not host or parts.scheme not in ("http", "https") or re.search(r"\s", address):
        raise InvalidInput(path, "an http:// or https:// address is expected.")
    secret = any(_SECRET_QUERY.fullmatch(name) and given for name, given in parse_qsl(parts.query))
    if user is not None or secret:
        raise InvalidInput(path, "this looks like a secret; secrets stand in headers, never in the url.")
    return address


def _as_it_may_be(address: str) -> str:
    """Return an address with its defaults in place, and with something where a variable will stand."""
    filled = expand(address, {each.name: "x" for each in placeholders(address) if each.default is None}.get)
    return f"https://{filled}" if address.startswith("${") and "://" not in filled else filled


def pairs(value: object, path: str, notes: Notes, *, header: bool) -> dict[str, Any]:
    """Return the values of ``env`` or ``headers``, each in one of the four forms."""
    if isinstance(value, list | tuple):
        value = _from_lines(value, path, notes)
    given = mapping({} if value is None else value, path)
    if len(given) > MAX_ITEMS:
        raise InvalidInput(path, f"{len(given)} items; at most {MAX_ITEMS} are possible.")
    found: dict[str, Any] = {}
    seen: set[str] = set()
    for name, item in given.items():
        place = f"{path}.{shown(name)}"
        fits = _HEADER_NAME if header else _ENV_NAME
        if not fits.fullmatch(name):
            raise InvalidInput(place, "this is not a header's name." if header else "this is not a variable's name.")
        key = name.lower() if header else name
        if key in seen:
            raise InvalidInput(place, "the same header is given twice.")
        seen.add(key)
        if item is None:
            notes.change(place, "left out: it has no value.")
        else:
            found[name] = _value(item, place, notes, header=header)
    return found


def _from_lines(lines: "list[object] | tuple[object, ...]", path: str, notes: Notes) -> dict[str, object]:
    given: dict[str, object] = {}
    for index, line in enumerate(lines):
        name, mark, value = line.partition("=") if isinstance(line, str) else ("", "", "")
        if not mark or name in given:
            raise InvalidInput(f"{path}.{index}", "an object of names and values is expected.")
        given[name] = value
    notes.change(path, "a list of NAME=value became an object.")
    return given


def _value(item: object, path: str, notes: Notes, *, header: bool) -> object:
    secret: object = True
    if isinstance(item, Mapping):
        if same(item.get("set"), True) and set(item) <= {"set", "last4"} and isinstance(item.get("last4", ""), str):
            return {key: item[key] for key in ("set", "last4") if key in item}
        if "value" not in item or not set(item) <= {"value", "secret"}:
            raise InvalidInput(path, 'a text, {"value": text, "secret": false}, or the mask of a GET is expected.')
        secret = item.get("secret", True)
        if not isinstance(secret, bool):
            raise InvalidInput(f"{path}.secret", "true or false is expected.")
        item = item["value"]
    content = text(item, path, notes, secret=True)
    if header and re.search(r"[\r\n]", content):
        raise InvalidInput(path, "a header has one line.")
    if header and not content.isascii():
        raise InvalidInput(path, "a header has ASCII characters only.")
    if refers_only(content) and secret:
        return content
    if secret and _SAMPLE.fullmatch(content):
        notes.warn(path, "this looks like a sample, not like a value.")
    return {"value": content, "secret": secret}


def enabled(given: Mapping[str, object], path: str, notes: Notes) -> bool:
    """Return whether a server is on, from ``enabled`` or its opposite."""
    on = _truth(given.get("enabled"), f"{path}.enabled", notes)
    off = _truth(given.get("disabled"), f"{path}.disabled", notes)
    if off is None:
        return on is not False
    if on is not None and on is off:
        raise InvalidInput(f"{path}.disabled", "enabled and disabled contradict each other.")
    notes.change(f"{path}.disabled", f"read as enabled: {str(not off).lower()}.")
    return not off


def _truth(value: object, path: str, notes: Notes) -> bool | None:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        notes.change(path, "a text became a truth value.")
        return value.strip().lower() == "true"
    if value is None or isinstance(value, bool):
        return value
    raise InvalidInput(path, "true or false is expected.")


def identity(value: object, path: str) -> str:
    if value is None:
        return "domain"
    if value not in ("domain", "user"):
        raise InvalidInput(path, "one of domain and user is expected.")
    return str(value)


def timeout(given: Mapping[str, object], path: str, notes: Notes) -> int | None:
    """Return milliseconds; of several timeouts the exact one counts."""
    chosen: int | None = None
    for key, unit in (("timeout", 0), ("timeoutSeconds", 1000), ("timeoutMs", 1)):
        value = given.get(key)
        if value is None:
            continue
        place = f"{path}.{key}"
        number = _number(value, place)
        factor = unit or (1000 if number < SECONDS_BELOW else 1)
        if not 1 <= number * factor <= MAX_TIMEOUT_MS:
            raise InvalidInput(place, f"between 1 and {MAX_TIMEOUT_MS} ms is expected.")
        chosen = round(number * factor)
        if unit == 0:
            notes.change(place, f"kept as timeoutMs {chosen}; {'seconds' if factor == 1000 else 'ms'} were assumed.")
        elif unit == 1000:
            notes.change(place, f"kept as timeoutMs {chosen}.")
        elif not same(value, chosen):
            notes.change(place, f"read as {chosen}.")
    return chosen


def _number(value: object, path: str) -> float:
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}(?:\.\d{1,6})?", value.strip()):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e12 or value != value:
        raise InvalidInput(path, "a number is expected.")
    return float(value)


def tools(given: Mapping[str, object], path: str, notes: Notes) -> dict[str, list[str]] | None:
    """Return which tools are offered, by the names the server gives them; None: all."""
    value = given.get("tools")
    place = f"{path}.tools"
    if isinstance(value, list | tuple):
        notes.change(place, "a list became tools.include.")
        value = {"include": value}
    stored = mapping({} if value is None else value, place)
    lists: dict[str, list[str]] = {}
    for key, others in (("include", ("includeTools", "allowedTools")), ("exclude", ("excludeTools", "disabledTools"))):
        names = _items(stored.get(key), f"{place}.{key}", notes)
        for other in others:
            more = _items(given.get(other), f"{path}.{other}", notes)
            if more:
                notes.change(f"{path}.{other}", f"read as tools.{key}.")
            names += more
        lists[key] = list(dict.fromkeys(names))
    for key in stored:
        if key not in lists:
            notes.unused(f"{place}.{shown(key)}", "include and exclude are")
    if lists["include"] == ["*"]:
        notes.change(f"{place}.include", "'*' is the same as none.")
        lists["include"] = []
    return lists if lists["include"] or lists["exclude"] else None
