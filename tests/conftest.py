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
from tests.programs import share_certificates, share_helper

# No process of a test downloads a model from the network. A test of downloads sets the hub's address itself.
os.environ["HF_HUB_OFFLINE"] = "1"
# Each browser test starts a Node.js program of Playwright, which spends a quarter of its start on compilation.
os.environ.setdefault("NODE_COMPILE_CACHE", str(Path(tempfile.gettempdir(), "agentic-rag-tests-node")))

share_certificates()

# No test asserts timing, because the machine may be busy.
settings.register_profile("patient", deadline=None)
# On CI each run of a commit tries the same examples, derived from the tests. Elsewhere the examples are random.
settings.register_profile("ci", settings.get_profile("patient"), derandomize=True, database=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "patient"))


SLOW_FOLDERS = {
    "clients": "runs real clients against a server",
    "conformance": "runs the public conformance suite's programs",
    "console": "opens the console in a real browser",
    "deploy": "builds, installs or starts the distribution",
    "e2e": "starts a server as a process",
    "faults": "starts and kills real servers",
    "sources": "starts MCP servers and websites",
}
"""Folders whose tests all count as slow, each with the reason."""
SLOW_SECONDS = 2.0
"""Limit above which a test should have the marker ``slow``. The end of a run lists tests without it."""
LISTED = 15
"""Maximum lines of a list at the end of a run."""


PER_MODULE = ("anyio_backend", "playwright_driver")
"""Fixtures that each module of the console's tests has for itself. A module's tests run in one worker."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="also run the tests marked nightly (scripts/test --all)")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the number of Hypothesis's examples: 100 by default, and five times as many nightly.

    The garbage collector stays off during collection, because the tests' short-lived syntax trees contain few cycles.
    """
    if config.getoption("--nightly"):
        settings.register_profile("nightly", settings(), max_examples=500)
        settings.load_profile("nightly")
    if (worker := getattr(config, "workerinput", None)) is not None:
        share_helper(worker["testrunuid"])
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collection. A full collection would walk a gigabyte of them each time."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group tests that share a fixture, and apply the markers ``nightly``, ``slow`` and ``sqlite``.

    A group runs in one worker. So do the source rules, which share one parse of all sources (`test_layers.sources`).
    """
    root = Path(__file__).parent
    for item in items:
        assert isinstance(item, pytest.Function)
        for name in shared_fixtures(item):
            item.add_marker(pytest.mark.xdist_group(name))
        if "playwright_driver" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group(f"console.{item.path.stem}"))
        if item.path.parent == root and hasattr(item.module, "sources"):
            item.add_marker(pytest.mark.xdist_group("sources"))
        if (reason := SLOW_FOLDERS.get(item.path.relative_to(root).parts[0])) is not None:
            item.add_marker(pytest.mark.slow(reason))
        if (nightly := item.get_closest_marker("nightly")) is not None and not config.getoption("--nightly"):
            item.add_marker(pytest.mark.skip(reason=f"nightly: {nightly.args[0]}"))
        if POSTGRESQL and (sqlite := item.get_closest_marker("sqlite")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"SQLite: {sqlite.args[0]}"))


def shared_fixtures(item: pytest.Function) -> Iterator[str]:
    """Yield a name for each of our fixtures that outlives a test. Without a group, every worker creates its own."""
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():
        place = definitions[-1].baseid
        if name in PER_MODULE:
            continue
        if definitions[-1].scope != "function" and place.startswith("tests"):
            # Tests that request this fixture by name at run time have the marker in their own file.
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
"""Maximum characters of a parameter in a test's id.

Some parameters are megabytes, and each worker sends and stores all ids.
"""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Truncate long texts in ids, and replace long bytes by the argument's name, as they may contain the time.

    Every worker collects the tests itself, and all of them must get the same ids.
    """
    if isinstance(val, (bytes, str)) and len(val) > LONGEST_NAME:
        return val[:LONGEST_NAME] if isinstance(val, str) else argname
    return None


@pytest.fixture(autouse=True)
def own_databases() -> Iterator[None]:
    """Drop a test's databases after it, if it runs on PostgreSQL."""
    with dropped_databases():
        yield


@pytest.fixture
def anyio_backend() -> str:
    """Run tests on asyncio, the only event loop that the product supports (qdrant-edge, uvicorn, SQLAlchemy)."""
    return "asyncio"
