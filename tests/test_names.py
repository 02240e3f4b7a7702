"""Trustworthy names: functions are verbs, words have one meaning, and references in texts exist."""

import ast
import builtins
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_layers import ROOT, docstrings, module_name, nodes, sources, text

NOT_PARTICIPLES = frozenset({"embed", "feed", "need", "seed", "shed", "speed", "proceed", "exceed", "succeed", "keyed"})
IRREGULAR = frozenset(
    {"begun", "broken", "chosen", "done", "drawn", "fallen", "forgotten", "found", "given", "gone", "held", "hidden"}
    | {"kept", "known", "led", "lost", "made", "meant", "paid", "said", "seen", "sent", "shown", "sold", "spent"}
    | {"spoken", "stolen", "taken", "taught", "thought", "told", "torn", "understood", "won", "worn", "written"}
)
"""Participles that are also the form of a verb or noun (cut, split, left) are allowed."""

SAID_SO = frozenset({"reached"})
"""``failpoints.reached("commit.begin")`` reads as a sentence."""

GONE_WORDS = ("wire",)
"""Words that the glossary has replaced, in any name."""


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from nodes(path, ast.FunctionDef)
    yield from nodes(path, ast.AsyncFunctionDef)


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator).endswith(("property", ".setter")) for decorator in node.decorator_list)


def is_participle(word: str) -> bool:
    return word in IRREGULAR or (word.isalpha() and word.endswith("ed") and word not in NOT_PARTICIPLES | SAID_SO)


def test_no_function_is_a_bare_participle() -> None:
    bare = [
        f"{path}:{node.lineno} {node.name}"
        for path in sources()
        for node in functions(path)
        if is_participle(node.name.strip("_")) and not is_property(node)
    ]
    assert bare == []


def test_no_name_uses_a_retired_word() -> None:
    assert [(str(path), words) for path in sources() if (words := words_of_names(path) & set(GONE_WORDS))] == []


def words_of_names(path: Path) -> set[str]:
    names = {path.stem}
    names.update(node.name for node in functions(path))
    names.update(node.name for node in nodes(path, ast.ClassDef))
    names.update(node.arg for node in nodes(path, ast.arg))
    names.update(node.id for node in nodes(path, ast.Name))
    names.update(node.attr for node in nodes(path, ast.Attribute))
    return {word.lower() for name in names for word in re.findall(r"[A-Za-z][a-z]*|[A-Z]+(?![a-z])", name)}


# References in texts

MARKDOWN = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("roles/**/*.md")])
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")
FOLDERS = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
CITED_FILE = re.compile(r"`{1,2}([\w./{}-]+\.(?:py|md|toml|json|jsonl))`{1,2}|\b([a-z][\w-]*\.md)\b")


def test_links_of_pages_resolve() -> None:
    broken_links = [
        f"{path}: {target}"
        for path in MARKDOWN
        for target in LINK.findall(path.read_text(encoding="utf-8"))
        if "://" not in target and not target.startswith("mailto:") and not (path.parent / target).exists()
    ]
    assert broken_links == []


PLACE = re.compile(r"`([\w./]+(?:\.py|/))`")
ROOMS = (".", "agentic_rag", "agentic_rag/runtime", "mcp_servers/retriever", "mcp_servers/promptx")
"""The folder of a page's relative paths."""


@pytest.mark.parametrize("page", ["architecture", "adding", "glossary"])
def test_paths_named_by_the_map_exist(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    missing_places = [
        place for place in PLACE.findall(text) if not any((ROOT / room / place).exists() for room in ROOMS)
    ]
    assert not missing_places, missing_places


CITED_TESTS = re.compile(r"`(test_\w+)`(?: \(((?:`\w+`(?:, )?)+)\))?")
"""A file of tests, and in brackets parts of the names of its tests."""


def test_tests_named_by_the_threat_model_exist() -> None:
    page = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    missing_tests = [
        f"{file} {part}"
        for file, parts in CITED_TESTS.findall(page)
        for part in re.findall(r"\w+", parts) or [""]
        if not any(re.search(rf"def test_\w*{part}", text(path)) for path in ROOT.glob(f"tests/**/{file}.py"))
    ]
    assert missing_tests == []


def defined_names(module: str) -> set[str] | None:
    """Return the names that a module of this repository defines or imports, or None if it does not exist."""
    place = ROOT.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not path.exists():
        return None
    names = {file.stem for file in place.glob("*")} if place.is_dir() else set()
    for node in ast.walk(ast.parse(text(path))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return names


def test_imports_of_scripts_exist() -> None:
    """No other check reads the scripts: mypy does not, and most of them no test runs."""
    broken_imports = [
        f"{path.name}:{node.lineno}: {node.module}.{alias.name}"
        for path in sorted(ROOT.glob("scripts/*"))
        if path.is_file() and ("python" in text(path).partition("\n")[0] or path.suffix == ".py")
        for node in ast.walk(ast.parse(text(path)))
        if isinstance(node, ast.ImportFrom)
        and node.module is not None
        and node.module.partition(".")[0] in ("agentic_rag", "mcp_servers", "tests", "bench")
        for alias in node.names
        if alias.name not in (defined_names(node.module) or ())
    ]
    assert broken_imports == []


def python_texts() -> Iterator[tuple[Path, str]]:
    for path in [*sources(), *ROOT.glob("tests/**/*.py"), *(path for path in ROOT.glob("scripts/*") if path.is_file())]:
        yield path, text(path)


def test_no_source_cites_a_page_that_is_not_in_the_repository() -> None:
    """A page is referenced by its name. Examples of users' own files are no pages."""
    pages = {path.name for place in (ROOT, *FOLDERS) for path in place.glob("*.md" if place == ROOT else "**/*.md")}
    citation = re.compile(r"(?<![\w/.-])((?:docs/)?[a-z-]+\.md)(?: \(\"|, \"| has | says | lists |'s)")
    wrong_citations = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in python_texts()
        for name in citation.findall(text)
        if name.rpartition("/")[2] not in pages
    ]
    assert not wrong_citations, wrong_citations


# Docstring references: `Name`, `Name.member`, `module.name` in single backticks.

REFERENCE = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")
KNOWN_ELSEWHERE = frozenset({"HEAD"})


@cache
def product_names() -> frozenset[str]:
    """Return every name the product defines: modules, classes, functions, members, parameters."""
    return frozenset(dir(builtins)).union(*map(names_of, sources()))


@cache
def names_in_tests() -> frozenset[str]:
    """Return every name the tests define. Few docstrings of the product refer to one."""
    return frozenset().union(*map(names_of, ROOT.glob("tests/**/*.py")))


def names_of(path: Path) -> set[str]:
    names = {path.stem}
    if path.is_relative_to(ROOT / "agentic_rag"):
        names.update(module_name(path).split("."))
    names.update(node.name for node in functions(path))
    names.update(node.name for node in nodes(path, ast.ClassDef))
    names.update(node.arg for node in nodes(path, ast.arg))
    names.update(node.id for node in nodes(path, ast.Name))
    names.update(node.attr for node in nodes(path, ast.Attribute))
    names.update(keyword.arg for keyword in nodes(path, ast.keyword) if keyword.arg)
    for alias in nodes(path, ast.alias):
        names.update((alias.asname or alias.name).split("."))
        names.update(alias.name.split("."))
    for node in nodes(path, ast.ImportFrom):
        names.update((node.module or "").split("."))
    constants = (node.value for node in nodes(path, ast.Constant))
    names.update(value for value in constants if isinstance(value, str) and value.isidentifier())
    return names


def importable(dotted: str) -> bool:
    module, _, remaining = dotted.partition(".")
    try:
        value: object = importlib.import_module(module)
    except ImportError:
        return False
    while remaining:
        name, _, remaining = remaining.partition(".")
        if not hasattr(value, name):
            try:
                value = importlib.import_module(f"{getattr(value, '__name__', '')}.{name}")
            except ImportError:
                return False
        else:
            value = getattr(value, name)
    return True


def test_names_in_docstrings_exist() -> None:
    assert [reference for path in sources() for reference in broken_references(path)] == []


def broken_references(path: Path) -> Iterator[str]:
    for line, docstring in docstrings(path):
        for name in REFERENCE.findall(docstring):
            unknown_names = set(name.strip(".").split(".")) - product_names()
            if unknown_names and not importable(name) and not unknown_names <= names_in_tests():
                yield f"{path}:{line} `{name}`"


PAGES = ("architecture.md", "adding.md")
"""The pages in `docs` that describe the code."""
QUOTED_FILE = re.compile(r"`((?:[\w-]+/)*[\w-]+\.(?:py|js|css)|(?:[\w-]+/)+)`")
QUOTED_NAME = re.compile(r"`([a-z_]+\.[A-Z]\w+|[A-Z]\w*[a-z]\w*[A-Z]\w*(?:\.\w+)?)`")


def test_files_and_names_in_the_pages_about_the_code_exist() -> None:
    folders = ("agentic_rag", "mcp_servers", "tests", "scripts", "docs", "bench", "clients", "roles", "workspaces")
    paths = [path for name in folders for path in (ROOT / name, *ROOT.glob(f"{name}/**/*"))]
    files = [f"/{path.relative_to(ROOT)}{'/' * path.is_dir()}" for path in paths]
    known_names = product_names()
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", ROOT.joinpath("docs", page).read_text("utf-8"), flags=re.DOTALL)
        named = sorted(file for file in QUOTED_FILE.findall(prose) if "NAME" not in file)
        missing = [file for file in named if not any(path.endswith(f"/{file}") for path in files)]
        missing += [name for name in QUOTED_NAME.findall(prose) if not {*name.split(".")} <= known_names]
        assert not missing, f"docs/{page} names what does not exist: {missing}"


# Types at the borders

LOOSE = re.compile(r"(dict|Mapping)\[str, (Any|object)\]")
MOST_LOOSE = 80


def test_few_signatures_use_untyped_json_objects() -> None:
    loose = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in sources()
        for node in functions(path)
        if may_be_loose(path, node)
        and LOOSE.search(ast.unparse(node.args) + (ast.unparse(node.returns) if node.returns else ""))
    ]
    assert len(loose) <= MOST_LOOSE, f"{len(loose)} at most {MOST_LOOSE}: {loose}"


def may_be_loose(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return False if the lines of a signature name neither type, because writing out each signature is slow."""
    lines = text_lines(path)[node.lineno - 1 : node.body[0].lineno]
    return any("Any" in line or "object" in line for line in lines)


@cache
def text_lines(path: Path) -> list[str]:
    return text(path).splitlines()


IDS = frozenset({"conversation_id", "session_id", "turn_id", "message_id", "document_id"})
"""Each has its own type in ``agentic_rag.base.ids``."""
SPEAKS_TEXT = ("agentic_rag/chat/", "agentic_rag/testing/", "agentic_rag/models/")
"""Clients of our own server, and code that speaks to a model: for them an id is the text they received."""


def test_signatures_with_two_ids_have_id_types() -> None:
    mixed = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in sources()
        if not str(path.relative_to(ROOT)).startswith(SPEAKS_TEXT)
        for node in functions(path)
        if len(IDS & {parameter.arg for parameter in (*node.args.posonlyargs, *node.args.args)}) > 1
        and len(IDS & set(text_parameters(node))) > 1
    ]
    assert mixed == [], "ids that take each other's place unnoticed"


def text_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Parameters passed by position. A keyword argument cannot be mistaken for another one."""
    for argument in (*node.args.posonlyargs, *node.args.args):
        if argument.annotation is not None and ast.unparse(argument.annotation) in ("str", "str | None"):
            yield argument.arg
