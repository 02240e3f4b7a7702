"""``agentic-rag sources``: MCP servers, folders and websites whose items become documents of a domain."""

import json
from typing import Annotated

import typer

from agentic_rag.base.json_form import Json
from agentic_rag.commands.line import AsJson, Data, Url, quote_part, run, table

sources_app = typer.Typer(help="Sources of documents: MCP servers, folders and websites.", no_args_is_help=True)

Domain = Annotated[str, typer.Option("--domain", help="Id of the domain.", show_default=False)]
SourceId = Annotated[str, typer.Argument(help="Id of the source, as `sources list` shows it.")]
SourceName = Annotated[str, typer.Argument(help="A name, unique in the domain.")]
Label = Annotated[list[str] | None, typer.Option("--label", help="Label of the documents; repeatable.")]
Exclude = Annotated[list[str] | None, typer.Option(help="A pattern of addresses to leave out; may be repeated.")]
Every = Annotated[int, typer.Option("--every", help="Minutes between two runs.")]
Grace = Annotated[int, typer.Option("--grace", help="Hours until the document of a missing item is removed.")]
Most = Annotated[int, typer.Option("--max-items", help="Maximum number of items.")]

_HEAD = ("id", "name", "kind", "state", "items", "errors", "next", "problem")


@sources_app.command("list")
def list_sources(domain: Domain, as_json: AsJson = False, data: Data = None, url: Url = None) -> None:
    """List sources: id, name, kind, state, items, items with errors, next run, problem."""
    page = run(data, url, lambda client: client.call("GET", _path(domain)))
    table(_HEAD, [_row(item) for item in page["items"]], page["items"], as_json)


@sources_app.command("add-mcp")
def add_mcp(
    name: SourceName,
    server: Annotated[str, typer.Argument(help="Name of an MCP server of the domain.")],
    domain: Domain,
    resource: Annotated[
        list[str] | None, typer.Option(help="An address or pattern of resources; may be repeated.")
    ] = None,
    tools: Annotated[str, typer.Option(help="JSON with listTool and readTool, instead of resources.")] = "",
    label: Label = None,
    exclude: Exclude = None,
    every: Every = 1_440,
    grace: Grace = 24,
    max_items: Most = 10_000,
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Add the resources of an MCP server, or the items that two of its tools list and read."""
    form: Json = {"server": server, "resources": resource or ["*"]}
    if tools:
        try:
            form |= json.loads(tools)
        except (ValueError, TypeError) as exc:
            raise typer.BadParameter(f"--tools: a JSON object with listTool and readTool is expected ({exc})") from exc
    _add({"name": name, "mcp": form}, domain, label, exclude, every, grace, max_items, as_json, data, url)


@sources_app.command("add-folder")
def add_folder(
    name: SourceName,
    path: Annotated[str, typer.Argument(help="An absolute path on the server, in AGENTIC_RAG_SOURCE_FOLDERS.")],
    domain: Domain,
    include: Annotated[list[str] | None, typer.Option(help="A pattern of file names; may be repeated.")] = None,
    label: Label = None,
    exclude: Exclude = None,
    every: Every = 1_440,
    grace: Grace = 24,
    max_items: Most = 10_000,
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Add a folder on the server."""
    form = {"name": name, "folder": {"path": path, "include": include or []}}
    _add(form, domain, label, exclude, every, grace, max_items, as_json, data, url)


@sources_app.command("add-website")
def add_website(
    name: SourceName,
    address: Annotated[list[str], typer.Argument(help="Addresses of pages.", show_default=False)],
    domain: Domain,
    sitemaps: Annotated[bool, typer.Option("--sitemaps", help="The addresses are sitemaps.")] = False,
    include: Annotated[list[str] | None, typer.Option(help="A pattern of addresses; may be repeated.")] = None,
    label: Label = None,
    exclude: Exclude = None,
    every: Every = 1_440,
    grace: Grace = 24,
    max_items: Most = 10_000,
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Add pages of a website, or those that its sitemaps list."""
    form = {"sitemaps" if sitemaps else "urls": address, "include": include or []}
    _add({"name": name, "website": form}, domain, label, exclude, every, grace, max_items, as_json, data, url)


@sources_app.command("pause")
def pause_source(source: SourceId, domain: Domain, as_json: AsJson = False, data: Data = None, url: Url = None) -> None:
    """Pause a source. Its documents stay."""
    _change(source, domain, {"enabled": False}, as_json, data, url)


@sources_app.command("resume")
def resume_source(
    source: SourceId, domain: Domain, as_json: AsJson = False, data: Data = None, url: Url = None
) -> None:
    """Resume a source. A run begins at once."""
    _change(source, domain, {"enabled": True}, as_json, data, url)


@sources_app.command("label")
def label_source(
    source: SourceId, domain: Domain, label: Label = None, as_json: AsJson = False, data: Data = None, url: Url = None
) -> None:
    """Replace the labels of a source and of its documents. Without --label, they lose the source's labels."""
    _change(source, domain, {"labels": label or []}, as_json, data, url)


@sources_app.command("run")
def run_source(source: SourceId, domain: Domain, as_json: AsJson = False, data: Data = None, url: Url = None) -> None:
    """Run a source now. A running server does the run."""
    path = f"{_path(domain)}/{quote_part(source)}/run"
    source_now = run(data, url, lambda client: client.call("POST", path))
    table(_HEAD, [_row(source_now)], source_now, as_json)


@sources_app.command("items")
def list_items(
    source: SourceId,
    domain: Domain,
    failed: Annotated[bool, typer.Option("--failed", help="Only items with an error.")] = False,
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """List the items of a source: address, document, time, error. At most 1000."""
    params = {"limit": "1000"} | ({"failed": "true"} if failed else {})
    path = f"{_path(domain)}/{quote_part(source)}/items"
    page = run(data, url, lambda client: client.call("GET", path, params=params))
    rows = [
        (item["uri"], item.get("documentId", "-"), item["seenAt"], item.get("error", {}).get("message", "-"))
        for item in page["items"]
    ]
    table(("address", "document", "seen", "error"), rows, page["items"], as_json)


@sources_app.command("remove")
def remove_source(
    source: SourceId,
    domain: Domain,
    documents: Annotated[str, typer.Option(help="Keep or delete the documents of the source.", show_default=False)],
    data: Data = None,
    url: Url = None,
) -> None:
    """Remove a source. Its documents stay, or a running server removes them."""
    path, params = f"{_path(domain)}/{quote_part(source)}", {"documents": documents}
    run(data, url, lambda client: client.call("DELETE", path, params=params))


def _add(
    form: Json,
    domain: str,
    labels: list[str] | None,
    exclude: list[str] | None,
    every: int,
    grace: int,
    max_items: int,
    as_json: bool,
    data: Data,
    url: Url,
) -> None:
    options = {"labels": labels or [], "exclude": exclude or [], "intervalMinutes": every}
    body = {**form, **options, "graceHours": grace, "maxItems": max_items}
    created = run(data, url, lambda client: client.call("POST", _path(domain), json=body))
    table(_HEAD, [_row(created)], created, as_json)


def _change(source: str, domain: str, change: Json, as_json: bool, data: Data, url: Url) -> None:
    path = f"{_path(domain)}/{quote_part(source)}"
    changed = run(data, url, lambda client: client.call("PATCH", path, json=change))
    table(_HEAD, [_row(changed)], changed, as_json)


def _path(domain: str) -> str:
    return f"/api/domains/{quote_part(domain)}/sources"


def _row(source: Json) -> tuple[str, ...]:
    state = source["state"] if source["state"] != "idle" else "on" if source["enabled"] else "off"
    counts = (str(source["items"]), str(source["failedItems"]))
    problem = source.get("problem", {}).get("message", "-")
    return (source["id"], source["name"], source["kind"], state, *counts, source["nextAt"] or "-", problem)
