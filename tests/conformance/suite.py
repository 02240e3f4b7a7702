"""Run MCP's public conformance suite against the product, scenario by scenario.

This module selects the scenarios that a revision requires, calls the suite, and parses its output. The package is
locked in ``tests/clients``; see `tests.node`.
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.node import CLIENTS, node

ROOT = Path(__file__).resolve().parent.parent.parent
SUITE = CLIENTS / "node_modules" / "@modelcontextprotocol" / "conformance"
REVISIONS = ("2026-07-28", "2025-11-25")
PATIENCE = 240
"""Seconds for one scenario."""

INSTALL = "npm ci --prefix tests/clients --no-audit --no-fund --ignore-scripts"
"""Command that installs the suite. Tests that need the suite run it themselves."""

Leg = Literal["client", "server"]

FIXTURE = re.compile(r"^Not testable|'test_\w+'")
"""The suite's message for checks that need the tools of its reference server."""

GENERIC = (
    "server-",
    "ping",
    "tools-list",
    "resources-list",
    "prompts-list",
    "dns-rebinding",
    "caching",
    "sep-2164",
    "input-required-result-unsupported",
    "input-required-result-ignore",
)
"""Prefixes of server scenarios that any server can pass.

The other scenarios use tools, prompts and resources of the suite's reference server.
"""

EXTENSIONS = ("auth/client-credentials-jwt", "auth/client-credentials-basic")
"""Scenarios of extensions that the product has as a client. They belong to no revision."""

NOT_HELD = {
    "auth/enterprise-managed-authorization": "sign-in by an ID-JAG of the company's identity provider is not offered",
    "auth/dpop": "tokens are bearer tokens, sealed in the vault and bound to one server; DPoP is not offered",
    "auth/dpop-nonce": "as auth/dpop",
    "auth/wif-jwt-bearer": "the server has no workload identity of a platform that it could present",
    "sep-2640-client-*": "as a client, the product reads no skills of other servers",
}
"""Scenarios of extensions that the product does not have as a client, with the reasons."""

_CHECK = re.compile(r"^  - (\w+: .*)(?:\n    Error: (.*))?$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one scenario. ``failed`` lists failed checks with reasons; ``output`` is the whole output."""

    scenario: str
    passed: bool
    failed: tuple[str, ...]
    output: str


def advise_install(suite: Path = SUITE) -> str:
    """Return how to install the suite if its package is not in that folder, else an empty text."""
    if (suite / "dist" / "index.js").is_file():
        return ""
    return f"The conformance suite is not installed. Install its packages with:\n\n    {INSTALL}"


def required_scenarios(revision: str, leg: Leg) -> list[str]:
    """Return the scenarios that a revision requires of a client or a server, from the list that the suite froze."""
    text = (SUITE / "requirements" / f"{revision}.yaml").read_text()
    match = re.search(rf"^{leg}:\n((?:  .*\n|\s*#.*\n|\n)*)", text, re.MULTILINE)
    assert match is not None
    return re.findall(r"^  - (\S+)$", match[1], re.MULTILINE)


def run_scenario(scenario: str, revision: str, leg: Leg, *, url: str = "", extension: bool = False) -> Result:
    """Run one scenario with the revision's protocol version.

    ``url`` is the server's address, for scenarios of servers. ``extension``: the scenario belongs to an extension, and
    so to no revision.
    """
    command = [str(node()), str(SUITE / "dist" / "index.js"), leg, "--scenario", scenario, "--spec-version", revision]
    target = ["--url", url] if leg == "server" else ["--command", f"{sys.executable} -m tests.conformance.client"]
    target += ["--timeout", str(PATIENCE * 1000), *(["--force"] if extension else [])]
    with tempfile.TemporaryDirectory() as folder:  # folder for the suite's results
        result = subprocess.run(
            [*command, *target, "-o", folder],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
        )
        output = result.stdout + result.stderr + "".join(path.read_text() for path in Path(folder).rglob("std*.txt"))
    return Result(scenario, *verdict(_COLOUR.sub("", output), result.returncode), output)


def verdict(output: str, code: int) -> tuple[bool, tuple[str, ...]]:
    """Return whether a scenario passed, and its failed checks with the suite's reasons.

    ``output`` is the suite's output without colours, ``code`` its exit code. A check that only the suite's reference
    server can pass does not count. A scenario that the suite skipped has not passed.
    """
    if skip_line := re.search(r"^SKIPPED: .*", output, re.MULTILINE):
        return False, (skip_line[0],)
    _, _, end = output.partition("Failed Checks")
    failed_checks = [(name, reason) for name, reason in _CHECK.findall(end.partition("Warning Checks")[0])]
    counting = tuple(f"{name} {reason}".strip() for name, reason in failed_checks if not FIXTURE.search(reason))
    return (code == 0 or (bool(failed_checks) and not counting)), counting
