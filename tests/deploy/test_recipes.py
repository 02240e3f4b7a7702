"""The recipes of docs/adding.md work, and change only the files that they name.

Each recipe is applied to one copy of the repository. Then `recipe_user` runs the scripts that the recipes name and uses
all additions from outside. One process does both, because its imports are most of the CPU time.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import anyio.to_thread

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("agentic_rag", "mcp_servers", "roles", "workspaces", "tests", "scripts", "docs", "pyproject.toml")
LIMIT = 240.0
"""Seconds that a program of the copy may take."""


class Copy:
    """A copy of the repository. Its methods edit by the names of classes and functions, not by lines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.changed: set[str] = set()
        self.scripts: dict[tuple[str, ...], None] = {}
        """The scripts to run, with their arguments, in order."""
        for part in PARTS:
            if (ROOT / part).is_dir():
                # With the compiled modules, whose times fit, and without the packages of the JavaScript clients.
                shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("node_modules"))
            else:
                shutil.copy(ROOT / part, folder / part)

    def _edit(self, file: str, change: Callable[[list[str], ast.Module], None]) -> None:
        path = self._folder / file
        text = path.read_text("utf-8")
        lines = text.splitlines()
        change(lines, ast.parse(text if file.endswith(".py") else ""))
        path.write_text("\n".join(lines) + "\n", "utf-8")
        self.changed.add(file)

    def write(self, file: str, text: str) -> None:
        """Write a new file, or append to a file."""
        path = self._folder / file
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file_object:
            file_object.write(text)
        self.changed.add(file)

    def end_class(self, file: str, name: str, text: str) -> None:
        """Add a member at the end of a class."""

        def change(lines: list[str], tree: ast.Module) -> None:
            (class_node,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
            assert class_node.end_lineno is not None
            lines.insert(class_node.end_lineno, text)

        self._edit(file, change)

    def add_field(self, file: str, name: str, text: str) -> None:
        """Add a field to a class, before its methods."""

        def change(lines: list[str], tree: ast.Module) -> None:
            (class_node,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
            fields = [number for number, member in enumerate(class_node.body) if isinstance(member, ast.AnnAssign)]
            last = class_node.body[fields[-1]]
            for following_member in class_node.body[fields[-1] + 1 :][:1]:
                last = following_member if isinstance(following_member, ast.Expr) else last  # the field's docstring
            assert last.end_lineno is not None
            lines.insert(last.end_lineno, text)

        self._edit(file, change)

    def begin_function(self, file: str, name: str, text: str) -> None:
        """Add a statement before the first one of a function, after its docstring."""

        def change(lines: list[str], tree: ast.Module) -> None:
            kinds = ast.FunctionDef | ast.AsyncFunctionDef
            (function_node,) = (node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == name)
            first = function_node.body[1] if ast.get_docstring(function_node) is not None else function_node.body[0]
            lines.insert(first.lineno - 1, text)

        self._edit(file, change)

    def before(self, file: str, line: str, text: str) -> None:
        """Add text before the last line that begins like this."""

        def change(lines: list[str], tree: ast.Module) -> None:
            number = max(number for number, existing in enumerate(lines) if existing.startswith(line))
            lines.insert(number, text)

        self._edit(file, change)

    def after(self, file: str, line: str, text: str) -> None:
        """Add text after the only line that begins like this."""

        def change(lines: list[str], tree: ast.Module) -> None:
            (number,) = (number for number, existing in enumerate(lines) if existing.startswith(line))
            lines.insert(number + 1, text)

        self._edit(file, change)

    def run(self, *arguments: str) -> str:
        """Run a program of the copy and return its output."""
        inherited = {
            name: text for name, text in os.environ.items() if not name.startswith(("AGENTIC_RAG_", "ANTHROPIC_"))
        }
        result = subprocess.run(
            [sys.executable, *arguments],
            cwd=self._folder,
            env=inherited | {"PYTHONPATH": str(self._folder), "AGENTIC_RAG_GREETING_SECONDS": "7"},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert result.returncode == 0, result.stderr[-4000:]
        return result.stdout

    def script(self, name: str, output_file: str, *arguments: str) -> None:
        """Note that a script must run, which writes the file ``output_file``."""
        self.scripts[f"scripts/{name}", *arguments] = None
        self.changed.add(output_file)


def add_event(copy: Copy) -> None:
    copy.before(
        "agentic_rag/base/events.py",
        "EventBody = (",
        '@dataclass(frozen=True, slots=True)\nclass Greeted:\n    """A greeting."""\n\n'
        '    type: ClassVar[str] = "greeted"\n    spoken_words: str\n\n',
    )
    copy.after("agentic_rag/base/events.py", "EventBody = (", "    Greeted |")
    copy.begin_function(
        "agentic_rag/runtime/agent.py",
        "_drive",
        '        from agentic_rag.base.events import Greeted\n\n        self.log.append(Greeted("hello there"))',
    )
    copy.write("docs/clients/native.md", "\n`greeted` has `spokenWords`.\n")


def add_settings(copy: Copy) -> None:
    copy.add_field(
        "agentic_rag/directory/settings.py",
        "DomainSettings",
        '    greeting_style: Literal["warm", "cool"] = "warm"\n    """How answers greet."""',
    )
    copy.add_field(
        "agentic_rag/base/settings.py", "Settings", '    greeting_seconds: int = 3\n    """Seconds of a greeting."""'
    )
    copy.script("write_settings", "docs/settings.md")


def add_route(copy: Copy) -> None:
    copy.end_class(
        "agentic_rag/server/routes/usage.py",
        "UsageRoutes",
        '\n    @route("GET", "/api/domains/{domain}/greetings", allow="member")\n'
        "    async def list_greetings(self, domain: str) -> Items[str]:\n"
        '        """Return the greetings of a domain."""\n        return Items([f"hello {domain}"])\n',
    )


def add_error(copy: Copy) -> None:
    copy.write(
        "agentic_rag/base/errors.py",
        '\n\nclass GreetingRefused(AgenticRagError, code="GREETING_REFUSED", status=409, facts=("name",)):\n'
        '    """A person who is not greeted."""\n\n    name: str\n    text = "{self.name} is not greeted."\n',
    )
    routes = "agentic_rag/server/routes/usage.py"
    copy.before(routes, "class UsageRoutes", "from agentic_rag.base.errors import GreetingRefused  # noqa: E402\n\n")
    copy.end_class(
        routes,
        "UsageRoutes",
        '\n    @route("GET", "/api/domains/{domain}/greetings/{name}", allow="member", errors=[GreetingRefused])\n'
        "    async def get_greeting(self, domain: str, name: str) -> Items[str]:\n"
        '        """Return the greeting of a person."""\n        raise GreetingRefused(name)\n',
    )
    copy.after(
        "agentic_rag/server/web/errors/zh.js", "export const codes = {", '  GREETING_REFUSED: "不问候 {name}。",'
    )


def add_command(copy: Copy) -> None:
    copy.write(
        "agentic_rag/commands/greet.py",
        '"""``agentic-rag greet``: greet a person."""\n\nfrom agentic_rag.commands.line import say\n\n\n'
        'def greet(name: str) -> None:\n    """Greet a person."""\n    say(f"hello {name}")\n',
    )
    copy.after("agentic_rag/cli.py", "import typer", "from agentic_rag.commands.greet import greet")
    copy.after("agentic_rag/cli.py", 'app.command(name="evaluate")', 'app.command(name="greet")(greet)')
    copy.script("write_commands", "docs/command-line.md")


def add_format(copy: Copy) -> None:
    copy.write(
        "mcp_servers/retriever/formats/greeting.py",
        '"""Reader of greetings."""\n\nfrom mcp_servers.retriever.document import Block, ParsedDocument\n\n\n'
        "def read_greeting(path, limits):\n"
        '    return ParsedDocument((Block("prose", path.read_bytes().decode()[::-1]),))\n',
    )
    copy.after(
        "mcp_servers/retriever/formats/__init__.py",
        "_OURS = {",
        '    "greeting:read_greeting": {".greeting": "text/x-greeting"},',
    )
    copy.script("write_formats", "docs/documents.md")


def add_tool(copy: Copy) -> None:
    copy.before(
        "mcp_servers/retriever/server.py",
        "def _takes_from",
        '    @server.tool(title="Greet", description="Greet a person.", annotations=READ_ONLY)\n'
        "    async def greet_person(name: str) -> str:\n"
        '        return f"hello {name}"\n',
    )
    copy.before(
        "agentic_rag/tools/system.py",
        "SYSTEM_TOOLS: Final = (",
        'GREET: Final = SystemTool("greet_person", RETRIEVER, "builtin")\n',
    )
    copy.after("agentic_rag/tools/system.py", "SYSTEM_TOOLS: Final = (", "    GREET,")


def add_dialect(copy: Copy) -> None:
    copy.write(
        "agentic_rag/server/dialects/greeting.py",
        '"""Events as lines of a greeting."""\n\n\nclass Greeting:\n    """Only the type of each event."""\n\n'
        '    name = "greeting"\n    headers = ()\n    needs_start = False\n    ended = False\n\n'
        "    def sse(self, event):\n        return b'data: hello %b\\n\\n' % event.type.encode()\n\n"
        "    def frames(self, event):\n        return (b'hello ' + event.type.encode(),)\n",
    )
    copy.before(
        "agentic_rag/server/dialects/__init__.py",
        "_OWN: dict[",
        "from agentic_rag.server.dialects.greeting import Greeting  # noqa: E402\n",
    )
    copy.after("agentic_rag/server/dialects/__init__.py", "_OWN: dict[", '    "greeting": Greeting,')


def add_record_field(copy: Copy) -> None:
    copy.add_field("agentic_rag/store/feedback.py", "FeedbackRecord", '    mood: str = "merry"')
    copy.add_field("agentic_rag/server/routes/feedback.py", "GivenFeedback", "    mood: Absent[str] = None")
    copy.script("make_migration", "agentic_rag/store/migrations/versions/v1000_initial_tables.py", "--initial")


def add_record(copy: Copy) -> None:
    copy.write(
        "agentic_rag/store/feedback.py",
        "\n\nclass GreetingRecord(Record, table=True):\n"
        '    """A greeting in a domain."""\n\n    __tablename__ = "greetings"\n    part_of = "domain"\n\n'
        "    id: Key[str]\n    domain_id: Indexed[str]\n    words: tuple[str, ...] = ()\n",
    )
    copy.script("make_migration", "agentic_rag/store/migrations/versions/v1000_initial_tables.py", "--initial")


RECIPES: dict[str, Callable[[Copy], None]] = {
    "An event": add_event,
    "A setting": add_settings,
    "A route": add_route,
    "An error": add_error,
    "A command": add_command,
    "A file format": add_format,
    "A tool": add_tool,
    "A dialect": add_dialect,
    "A record, a migration": add_record,
    "A field of a record": add_record_field,
}
"""By the headings of docs/adding.md."""


def named_files(heading: str) -> list[str]:
    """Return the patterns of files that a recipe names."""
    page = (ROOT / "docs" / "adding.md").read_text("utf-8")
    (section,) = re.findall(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    names = [name for name in re.findall(r"`([^`\s]+)`", section) if "/" in name]
    return [name + "*" if name.endswith("/") else name for name in names]


def outside(heading: str, changed: set[str]) -> list[str]:
    """Return the changed files that a recipe does not name."""
    patterns = named_files(heading)
    return [file for file in sorted(changed) if not any(fnmatch(f"/{file}", f"*/{pattern}") for pattern in patterns)]


def apply_all(folder: Path) -> str:
    copy = Copy(folder)
    for heading, recipe in RECIPES.items():
        copy.changed.clear()
        recipe(copy)
        assert outside(heading, copy.changed) == [], f"the recipe {heading!r} needs files that it does not name"
    return copy.run("-m", "tests.deploy.recipe_user", str(folder / "data"), json.dumps([*copy.scripts]))


async def test_each_recipe_works_with_the_files_that_it_names(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    before = os.umask(0o022)  # of a clone; an earlier test may have closed files
    try:
        folder.mkdir()
        assert await anyio.to_thread.run_sync(apply_all, folder) == "all recipes work\n"
    finally:
        os.umask(before)


def test_a_changed_file_that_a_recipe_does_not_name_is_detected() -> None:
    assert outside("A route", {"agentic_rag/server/routes/usage.py", "agentic_rag/server/auth.py"}) == [
        "agentic_rag/server/auth.py"
    ]
