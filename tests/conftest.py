"""Fixtures shared by all tests."""

import gc
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import settings

from tests.databases import POSTGRESQL, dropped_databases

# No process that a test starts fetches a model from the network by itself; who tests that says where the hub is.
os.environ["HF_HUB_OFFLINE"] = "1"
# Each test in a browser starts a Node.js program of Playwright, which spends a quarter of its start compiling itself.
os.environ.setdefault("NODE_COMPILE_CACHE", str(Path(tempfile.gettempdir(), "agentic-rag-tests-node")))

# Timing is never asserted, and the machine that runs the tests may be busy.
settings.register_profile("patient", deadline=None)
# What CI says of a commit is the same each time: it tries the examples that follow from the tests, others try others.
settings.register_profile("ci", settings.get_profile("patient"), derandomize=True, database=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "patient"))


SLOW_FOLDERS = {
    "clients": "runs real clients against a server",
    "conformance": "runs the public conformance suite's programs",
    "console": "opens the console in a real browser",
    "deploy": "builds, installs or starts the distribution",
    "e2e": "starts a server as a process",
    "faults": "starts and kills real servers",
}
"""Folders all of whose tests count as slow, each with the reason."""
SLOW_SECONDS = 2.0
"""A test that takes longer should have the marker ``slow``; the end of a run lists those without it."""
LISTED = 15
"""Lines of a list at the end of a run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="also run the tests marked nightly (scripts/test --all)")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the number of Hypothesis's examples: 100 each time, and five times as many nightly.

    The garbage collector stays off during the collection: the syntax nodes of all tests come and go, few in a cycle.
    """
    if config.getoption("--nightly"):
        settings.register_profile("nightly", settings(), max_examples=500)
        settings.load_profile("nightly")
    gc.disable()


def pytest_collection_finish() -> None:
    """Set aside the modules and tests: a full collection would walk a gigabyte of them each time."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group tests that share a fixture, and apply the markers ``nightly``, ``slow`` and ``sqlite``.

    A group runs in one worker. So do the source rules, which share one parse of all sources.
    """
    root = Path(__file__).parent
    for item in items:
        assert isinstance(item, pytest.Function)
        for name in shared_fixtures(item):
            item.add_marker(pytest.mark.xdist_group(name))
        if item.path.parent == root:
            item.add_marker(pytest.mark.xdist_group("sources"))
        if (reason := SLOW_FOLDERS.get(item.path.relative_to(root).parts[0])) is not None:
            item.add_marker(pytest.mark.slow(reason))
        if (nightly := item.get_closest_marker("nightly")) is not None and not config.getoption("--nightly"):
            item.add_marker(pytest.mark.skip(reason=f"nightly: {nightly.args[0]}"))
        if POSTGRESQL and (sqlite := item.get_closest_marker("sqlite")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"SQLite: {sqlite.args[0]}"))


def shared_fixtures(item: pytest.Function) -> Iterator[str]:
    """Yield a name for each fixture of ours that outlives one test: without a group, every worker makes its own."""
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():
        place = definitions[-1].baseid
        if definitions[-1].scope != "function" and place.startswith("tests"):
            # Tests that ask for this one by its name while they run have the marker in their own file.
            yield name if name == "postgresql_url" else f"{Path(place).stem}.{name}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: TerminalReporter) -> Iterator[None]:
    """Print the skips by reason and the unmarked slow tests, before pytest prints the failures.

    A CI record may keep only the last lines of the output, and those belong to the failures.
    """
    skips = Counter(_skip_reason(report) for report in terminalreporter.stats.get("skipped", ()))
    if skips:
        terminalreporter.section("skipped tests by reason")
        for reason, count in skips.most_common():
            terminalreporter.write_line(f"{count:5}  {reason}")
    slow = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        if report.when == "call" and report.duration > SLOW_SECONDS and "slow" not in report.keywords
    ]
    if slow:
        terminalreporter.section(f"{len(slow)} tests over {SLOW_SECONDS:.0f} s without the marker slow")
        for report in sorted(slow, key=lambda report: -report.duration)[:LISTED]:
            terminalreporter.write_line(f"{report.duration:5.1f}  {report.nodeid}")
    return (yield)


def _skip_reason(report: pytest.TestReport) -> str:
    """Return the reason of a skip: the last of pytest's (path, line, reason)."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


LONGEST_NAME = 80
"""Characters of a parameter in a test's id: some are megabytes, and each worker sends and keeps every id."""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name what is long by its beginning, and long bytes, which may hold the time of day, by the argument alone.

    Every worker collects for itself, and all must come to the same ids.
    """
    if isinstance(val, (bytes, str)) and len(val) > LONGEST_NAME:
        return val[:LONGEST_NAME] if isinstance(val, str) else argname
    return None


@pytest.fixture(autouse=True)
def own_databases() -> Iterator[None]:
    """By the PostgreSQL profile a test's databases go with it."""
    with dropped_databases():
        yield


@pytest.fixture
def anyio_backend() -> str:
    """The product runs on asyncio alone (qdrant-edge, uvicorn, SQLAlchemy); so do its tests."""
    return "asyncio"
