"""Which command lines may run: the match, its slots, and every refused bypass."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.errors import CatalogueProblem
from agentic_rag.tools.entries.entry import StdioTarget
from agentic_rag.tools.launch.allowed import LaunchCatalogue
from agentic_rag.tools.launch.catalogue import (
    CatalogueEntry,
    CatalogueMatch,
    LineRefusal,
    Package,
    Program,
    match_line,
    pin_version,
    slot_problem,
)
from agentic_rag.tools.launch.catalogue_file import parse_catalogue
from agentic_rag.tools.launch.environment import steers_a_program
from tests.tools import attack_lines

pytestmark = pytest.mark.attack(kind="spawning")

BUILTIN = LaunchCatalogue().builtin
WIDE = parse_catalogue(
    """
    [[entry]]
    id = "wide"
    npm = "wide@1.2.3"
    args = ["serve", "{url}", "{text}?", "{path:workspace}*"]
    options = { "--depth" = "{text}", "--quiet" = "" }
    env = { TOKEN = "{text}", START = "{url}" }
    set = { STATE = "{home}/state" }
    """,
    "wide",
)


def line(text: str, entries: Sequence[CatalogueEntry] = BUILTIN, **env: str) -> CatalogueMatch | LineRefusal:
    command, *args = text.split(" ")
    return match_line(entries, command, args, env)


@pytest.mark.parametrize(
    ("text", "entry", "changed"),
    [
        ("npx -y @modelcontextprotocol/server-filesystem .", "filesystem", True),
        ("npx @modelcontextprotocol/server-filesystem@latest docs out", "filesystem", True),
        ("npx --yes @modelcontextprotocol/server-memory", "memory", True),
        ("npx -y @modelcontextprotocol/server-everything stdio", "everything", True),
        ("npx -y @modelcontextprotocol/server-sequential-thinking", "sequential-thinking", True),
        ("uvx mcp-server-time --local-timezone=Europe/Berlin", "time", True),
        ("uvx MCP_Server.Time --local-timezone Europe/Berlin", "time", True),
    ],
)
def test_command_lines_in_common_use_match_and_get_an_exact_version(text: str, entry: str, changed: bool) -> None:
    match = line(text)
    assert isinstance(match, CatalogueMatch), match
    assert match.entry.id == entry
    assert bool(match.changes) == changed
    assert isinstance(match.entry.runs, Package)
    command, *args = text.split(" ")
    pinned_args = pin_version(match.entry, StdioTarget(command, tuple(args))).args
    second_match = match_line(BUILTIN, command, pinned_args, {})
    assert isinstance(second_match, CatalogueMatch)
    assert second_match.changes == ()
    assert second_match.args == match.args


@pytest.mark.parametrize("text", attack_lines.ALL)
def test_a_partly_allowed_command_line_is_refused(text: str) -> None:
    refusal = line(text)
    assert isinstance(refusal, LineRefusal), refusal
    assert refusal.place.split(".")[0] in ("command", "args")
    assert refusal.reason


@pytest.mark.parametrize("bad", ["a\x00b", "a\nb", "a\rb", "-x", "--x", "", "x" * 5000, "a\x1bb", "a\u2028b", "\ud800"])
@pytest.mark.parametrize("place", [1, 3])
def test_a_slot_takes_data_only(bad: str, place: int) -> None:
    args = ["wide@1.2.3", "serve", "https://h/", "note", "docs"]
    args[place + 1] = bad
    assert isinstance(match_line(WIDE, "npx", args, {}), LineRefusal)


def test_a_command_template_matches_its_parts_in_order_and_options_anywhere() -> None:
    for text in (
        "npx -y wide@1.2.3 serve https://h/",
        "npx -y wide@1.2.3 --quiet serve https://h/ note",
        "npx -y wide@1.2.3 serve --depth 3 https://h/ note a b --quiet",
        "npx -y wide@1.2.3 serve --depth=3 https://h/ note a b c",
    ):
        assert isinstance(line(text, WIDE), CatalogueMatch), text
    for text in (
        "npx -y wide@1.2.3",
        "npx -y wide@1.2.3 serve",
        "npx -y wide@1.2.3 https://h/ serve",
        "npx -y wide@1.2.3 serve ftp://h/",
        "npx -y wide@1.2.3 serve https://h/ --quiet --quiet",
        "npx -y wide@1.2.3 serve https://h/ --quiet=1",
        "npx -y wide@1.2.3 serve https://h/ --depth",
        "npx -y wide@1.2.3 serve https://h/ --deep=1",
    ):
        assert isinstance(line(text, WIDE), LineRefusal), text


def test_an_entry_gets_only_the_variables_it_names() -> None:
    text = "npx -y wide@1.2.3 serve https://h/"
    match = line(text, WIDE, TOKEN="a\nkey with lines", START="https://h/", STATE="/etc")
    assert isinstance(match, CatalogueMatch)
    assert set(match.env) == {"TOKEN", "START"}
    assert match.changes == ("env.STATE: left out, 'wide' sets it itself",)
    for env in ({"token": "x"}, {"NODE_OPTIONS": "-r x"}, {"TOKEN": "a\x00"}, {"START": "file:///x"}, {"OTHER": "x"}):
        refusal = line(text, WIDE, **env)
        assert isinstance(refusal, LineRefusal)
        assert refusal.place == f"env.{next(iter(env))}"


@pytest.mark.parametrize(
    "name",
    [
        *("NODE_OPTIONS", "node_options", "LD_PRELOAD", "Ld_Library_Path", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "ENV"),
        *("PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "pythonpath", "PERL5OPT", "PERL5LIB", "RUBYOPT", "RUBYLIB"),
        *("BASH_ENV", "BASH_FUNC_x%%", "GIT_SSH_COMMAND", "GIT_CONFIG_COUNT", "npm_config_script_shell", "PATH"),
        *("HOME", "IFS", "SHELLOPTS", "PS4", "PROMPT_COMMAND", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH"),
        *("UV_INDEX_URL", "PIP_INDEX_URL", "OPENSSL_CONF", "GCONV_PATH", "LOCPATH", "HTTP_PROXY", "https_proxy"),
        *("TMPDIR", "EDITOR", "PAGER", "LESSOPEN", "DOTNET_STARTUP_HOOKS", "LUA_INIT", "PHPRC", "ERL_AFLAGS"),
        *("AGENTIC_RAG_MCP_CHILD", "XDG_CONFIG_HOME", "DENO_DIR", "BUN_INSTALL", "ELECTRON_RUN_AS_NODE"),
    ],
)  # fmt: skip
def test_a_loader_variable_is_recognised_in_any_case(name: str) -> None:
    assert steers_a_program(name)
    assert steers_a_program(name.swapcase())


@pytest.mark.parametrize("name", ["API_KEY", "GITHUB_TOKEN", "OPENAI_API_KEY", "DEBUG", "TZ", "LOG_LEVEL", "MCP_PATH"])
def test_an_ordinary_variable_is_allowed(name: str) -> None:
    assert not steers_a_program(name)


WORDS = (
    "-y --yes npx uvx -c --call -- . .. stdio --quiet --depth --depth=1 @modelcontextprotocol/server-filesystem "
    "mcp-server-time wide wide@1.2.3 wide@1 serve https://h/"
)
WORD = st.one_of(
    st.sampled_from(WORDS.split(" ")),
    st.text(max_size=12),
    st.text(alphabet="-@=/.:\x00\n ~ab", max_size=8),
)


@given(st.one_of(st.sampled_from(["npx", "uvx", "node"]), st.text(max_size=6)), st.lists(WORD, max_size=8))
def test_a_matched_command_line_runs_its_entry_with_data_arguments_only(command: str, args: list[str]) -> None:
    match = match_line((*BUILTIN, *WIDE), command, args, {})
    if isinstance(match, LineRefusal):
        return
    assert command in ("npx", "uvx")
    package = match.entry.runs
    assert isinstance(package, Package)
    yes_words = [word for word in args[:2] if word in ("-y", "--yes")]
    assert args[len(yes_words)].lower().startswith(package.name)
    for value in match.args:
        if value.kind == "literal":
            assert value.text in match.entry.options or value.text in {part.literal for part in match.entry.args}
        else:
            assert slot_problem(value.kind, value.text) == ""
            assert not value.text.startswith("-")
            assert not set(value.text) & set("\x00\r\n")
    second_match = match_line(
        (*BUILTIN, *WIDE), command, pin_version(match.entry, StdioTarget(command, tuple(args))).args, {}
    )
    assert isinstance(second_match, CatalogueMatch)
    assert (second_match.args, second_match.changes) == (match.args, ())


def test_a_program_matches_by_its_path_and_its_whole_line() -> None:
    entries = parse_catalogue(
        '[[entry]]\nid = "own"\nexecutable = "/opt/own"\nsha256 = "AB"\nargs = ["--serve"]', "own"
    )
    assert entries[0].runs == Program("/opt/own", "/opt/own", {"/opt/own": "ab"})
    assert isinstance(line("/opt/own --serve", entries), CatalogueMatch)
    for text in ("/opt/own", "/opt/own --serve --more", "/opt/own --Serve", "own --serve", "/opt/../opt/own --serve"):
        assert isinstance(line(text, entries), LineRefusal), text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1", r"only \[\[entry\]\]"),
        ("[[entry]]\nid = 1", "is no text"),
        ('[[entry]]\nid = "a"', "executable"),
        ('[[entry]]\nid = "a"\nnpm = "x"', "exact version"),
        ('[[entry]]\nid = "a"\nnpm = "x@^1"', "exact version"),
        ('[[entry]]\nid = "a"\nexecutable = "x"\nsha256 = ""', "absolute"),
        ('[[entry]]\nid = "a"\nnpm = "x@1"\nargs = ["{text}...", "y"]', "only the last"),
        ('[[entry]]\nid = "a"\nnpm = "x@1"\nenv = { A = "{file}" }', "is no slot"),
        ('[[entry]]\nid = "a"\nnpm = "x@1"\nnetwork = "no"', "neither true nor false"),
        ('[[entry]]\nid = "a"\nnpm = "x@1"\nlimits = { memory = 1 }', "limits are"),
        ('[[entry]]\nid = "a"\nnpm = "x@1"\nshell = true', "'shell' is not known"),
        ('[[entry]]\nid = "a"\nnpm = "x@1"\n[[entry]]\nid = "a"\nnpm = "y@1"', "is taken"),
        ("[[entry", "Expected|Invalid|]]"),
    ],
)
def test_a_broken_catalogue_names_the_place(text: str, problem: str) -> None:
    with pytest.raises(CatalogueProblem, match=problem) as raised:
        parse_catalogue(text, "catalogue.toml")
    assert "catalogue.toml" in str(raised.value)


def test_a_broken_operator_file_allows_nothing_and_affects_no_other(tmp_path: Path) -> None:
    (tmp_path / "catalogue.toml").write_text("[[entry")
    (tmp_path / "allowed.json").write_text('{"entry": [{"id": 1}]}')
    assert LaunchCatalogue(tmp_path).entries() == BUILTIN


def test_the_operators_file_is_reloaded_when_it_changes(tmp_path: Path) -> None:
    catalogue = LaunchCatalogue(tmp_path)
    assert catalogue.entries() == BUILTIN
    (tmp_path / "catalogue.toml").write_text('[[entry]]\nid = "own"\nnpm = "own@1.0.0"')
    assert catalogue.entries()[0].id == "own"
    (tmp_path / "catalogue.toml").unlink()
    assert catalogue.entries() == BUILTIN
