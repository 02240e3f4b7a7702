"""``agentic-rag evaluate``: run a domain's evaluation cases, or try a change against the present state, for a CI.

Exit codes: 0 all cases passed, or the change passed or was only warned about; 1 a case failed, or the change is held;
3 a case could not be judged, or the run ended early.
"""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from xml.etree import ElementTree

import anyio
import typer

from agentic_rag.base.errors import AgenticRagError, InvalidInput
from agentic_rag.base.json_form import Json
from agentic_rag.commands.line import Data, Url, advising, printable, quote_part, run, say, waiting

if TYPE_CHECKING:
    from agentic_rag.commands.client import ServerClient

MAX_DRAFT_BYTES = 1024 * 1024
POLL_SECONDS = 0.2
MAX_POLL_SECONDS = 5.0
STOP_SECONDS = 5.0
"""Time limit of the request that ends a run after Ctrl-C."""
ENDED = ("done", "stopped", "failed")
PAGE = 1_000

UNJUDGED = 3
"""Exit code of a run in which a case has no verdict."""


def evaluate(
    domain: Annotated[str, typer.Argument(help="Id of the domain.")],
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            help='A change to try: JSON with "settings", "components", "role" or "removes". Nothing is applied.',
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    tier: Annotated[
        str | None, typer.Option("--tier", help="retrieval (no model call) or answers. Default: what the change needs.")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write the results as JUnit XML.")] = None,
    label: Annotated[str, typer.Option("--label", help="A name for the run, such as a commit.")] = "",
    repeats: Annotated[
        int | None, typer.Option("--repeats", min=1, max=9, help="How often each case is asked.")
    ] = None,
    data: Data = None,
    url: Url = None,
) -> None:
    """Run the cases of a domain, or try a change on them. Exit code 1: a case failed, or the change is held.

    Exit code 3: a case could not be judged, for example because the model did not answer.
    """
    if tier not in (None, "retrieval", "answers"):
        raise InvalidInput("--tier", f"retrieval or answers is expected, not {tier!r}.")
    base = f"/api/domains/{quote_part(domain)}/evaluation"
    options: Json = {} if repeats is None else {"repeats": repeats}
    if tier is not None:
        options["tier"] = tier
    change = None if against is None else _read_change(against)
    with advising("Run the command again to judge all cases."):
        if change is None:
            code = run(data, url, lambda client: run_cases(client, base, {**options, "label": label}, domain, junit))
        else:
            code = run(data, url, lambda client: try_change(client, base, {**change, **options}, domain, junit))
    if code:
        raise typer.Exit(code)


def _read_change(path: Path) -> Json:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_DRAFT_BYTES + 1)
    except OSError as exc:
        raise InvalidInput(str(path), f"this file cannot be read: {exc}") from exc
    if len(data) > MAX_DRAFT_BYTES:
        raise InvalidInput(str(path), f"larger than {MAX_DRAFT_BYTES} bytes.")
    try:
        change = json.loads(data)
    except ValueError as exc:
        raise InvalidInput(str(path), f"not valid JSON: {exc}.") from exc
    if not isinstance(change, dict):
        raise InvalidInput(str(path), 'a JSON object is expected, such as {"settings": {"retrievalTopK": 8}}.')
    return change


async def run_cases(client: "ServerClient", base: str, body: Json, domain: str, junit: Path | None) -> int:
    """Run the cases and return the exit code."""
    started = await client.call("POST", f"{base}/runs", json=body)
    ended = await _until_ended(client, f"{base}/runs/{started['id']}", "stop")
    results = await _results(client, f"{base}/runs/{started['id']}/results")
    for result in results:
        if result["outcome"] not in ("passed", "unchecked"):
            say(printable(f"{result['outcome']}: {result['question']}: {_why(result)}"))
    counts = ", ".join(f"{ended[name]} {name}" for name in ("failed", "gone", "unknown", "unchecked") if ended[name])
    say(f"{ended['passed']} of {ended['total']} cases as expected{f' ({counts})' if counts else ''}; run {ended['id']}")
    if ended["reason"]:
        say(printable(f"{ended['state']}: {ended['reason']}"), err=True)
    if junit is not None:
        _write_junit(
            junit, domain, ended, [(result, result["outcome"] == "failed", _why(result)) for result in results]
        )
    if ended["failed"]:
        return 1
    return UNJUDGED if ended["unknown"] or ended["state"] != "done" else 0


async def try_change(client: "ServerClient", base: str, body: Json, domain: str, junit: Path | None) -> int:
    """Try a change and return the exit code."""
    draft = await client.call("POST", f"{base}/try", json=body)
    draft = await _until_ended(client, f"{base}/drafts/{draft['id']}", "drop", "trying")
    decision = draft["decision"]
    say(printable(f"{draft['state']}: {decision['sentence']}; draft {draft['id']} ({draft['label']})"))
    query = {"before": draft["beforeRun"], "after": draft["afterRun"]}
    compared = await client.call("GET", f"{base}/comparison", params=query)
    worse = {result["caseId"]: result for result in compared["worse"]}
    for result in worse.values():
        say(printable(f"worse: {result['question']}: {_why(result['after'][0])}"))
    if junit is not None:
        results = await _results(client, f"{base}/runs/{draft['afterRun']}/results")
        cases = [(result, result["caseId"] in worse, f"worse than now: {_why(result)}") for result in results]
        _write_junit(junit, domain, compared["after"], cases)
    if draft["state"] == "held":
        return 1
    return UNJUDGED if draft["state"] == "failed" or not compared["compared"] else 0


async def _until_ended(client: "ServerClient", path: str, end: str, trying: str = "") -> Json:
    """Wait for the end of a run or of a trial, and show how far it is.

    Ctrl-C also ends the run or the trial at the server, by a request to ``path``/``end``.
    """
    pause = POLL_SECONDS
    try:
        with waiting("Evaluating") as show:
            while True:
                run_state: Json = await client.call("GET", path)
                if (run_state["state"] != trying) if trying else (run_state["state"] in ENDED):
                    return run_state
                if "total" in run_state:
                    show(f"Evaluating, {run_state['done']} of {run_state['total']} cases")
                await anyio.sleep(pause)
                pause = min(pause * 1.5, MAX_POLL_SECONDS)
    except anyio.get_cancelled_exc_class():
        # Shielded, because the cancellation of Ctrl-C would also end this request.
        with anyio.CancelScope(shield=True), anyio.move_on_after(STOP_SECONDS), suppress(AgenticRagError):
            await client.call("POST", f"{path}/{end}")
            say(f"The evaluation {path.rpartition('/')[2]} was ended; its results so far are kept.", err=True)
        raise


async def _results(client: "ServerClient", path: str) -> list[Json]:
    results: list[Json] = []
    while True:
        page = await client.call("GET", path, params={"offset": str(len(results)), "limit": str(PAGE)})
        results += page["items"]
        if not page["hasMore"]:
            return results


def _why(result: Json) -> str:
    failed = [
        " ".join(filter(None, [check["kind"], check["expected"], check["found"] and f"(found: {check['found']})"]))
        for check in result["checks"]
        if not check["passed"]
    ]
    return "; ".join([*failed, *([result["reason"]] if result["reason"] else [])]) or result["outcome"]


def _write_junit(path: Path, domain: str, ended: Json, results: list[tuple[Json, bool, str]]) -> None:
    """Write results as JUnit XML: failed cases as failures, unknown ones as errors, others as skipped."""
    failures = sum(bad for _, bad, _ in results)
    errors = sum(result["outcome"] == "unknown" and not bad for result, bad, _ in results)
    skipped = sum(result["outcome"] in ("gone", "unchecked") and not bad for result, bad, _ in results)
    suite = ElementTree.Element("testsuite", {"name": f"{domain} {ended['tier']}"})
    for name, count in (("tests", len(results)), ("failures", failures), ("errors", errors), ("skipped", skipped)):
        suite.set(name, str(count))
    suite.set("time", f"{ended['seconds']:.3f}")
    for result, bad, why in results:
        case = ElementTree.SubElement(suite, "testcase")
        case.set("classname", f"{domain}.{ended['tier']}")
        case.set("name", _xml(result["question"]))
        case.set("time", f"{result['seconds']:.3f}")
        tag = {"unknown": "error", "gone": "skipped", "unchecked": "skipped"}.get(result["outcome"], "")
        if bad or tag:
            ElementTree.SubElement(case, "failure" if bad else tag).set("message", _xml(why))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    try:
        with path.open("wb") as file:
            ElementTree.ElementTree(suites).write(file, encoding="utf-8", xml_declaration=True)
    except OSError as exc:
        raise InvalidInput(str(path), f"this file cannot be written: {exc.strerror or exc}.") from exc


_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters outside ``Char`` of XML 1.0 (2.2), which a document can hold in no form."""


def _xml(text: str) -> str:
    """Return text without the characters that XML cannot hold."""
    return _NO_XML.sub("", text)
