"""``agentic-rag keys`` and ``agentic-rag audit``: API keys and the audit log.

A new key goes to standard output alone, so that it can be piped. Messages about it go to standard error.
"""

import json
import sys
from enum import StrEnum
from typing import Annotated

import typer

from agentic_rag.base.errors import RequestRefused
from agentic_rag.commands.line import AsJson, Data, Url, quote_part, run, say, table

keys_app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)
audit_app = typer.Typer(help="Read and verify the audit log.", no_args_is_help=True)

Key = Annotated[str | None, typer.Option("--key", help="API key of the caller (AGENTIC_RAG_KEY).")]


class RoleName(StrEnum):
    """The role of a key."""

    operator = "operator"
    admin = "admin"
    author = "author"
    member = "member"


@keys_app.command("create")
def create_key(
    user: Annotated[str, typer.Option(help="User of the key; a user may have several keys.")],
    role: Annotated[
        RoleName | None,
        typer.Option(help="operator: everything; admin, author, member: of the named domains; default: as its user."),
    ] = None,
    domain: Annotated[list[str] | None, typer.Option(help="Id of a domain that the key may use; repeatable.")] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="Group whose labelled documents the key may see; repeatable.")
    ] = None,
    data: Data = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Create a key and print it. The key is shown only this once.

    The first key of a server ends access without keys. The command then also prints a key for you as the operator.
    """
    body = {"user": user, "role": role.value if role else None, "domains": domain or [], "groups": group or []}
    created = run(data, url, lambda client: client.call("POST", "/api/keys", json=body), key)
    say(f"Key {created['id']} of {created['userId']}; it is not shown again:", err=True)
    say(created["key"])
    if not created["first"]:
        return
    say("From now on this server asks everyone for a key. Commands with --data still work without one.", err=True)
    if created["role"] != RoleName.operator:
        body = {"user": "operator", "role": "operator"}
        try:
            own = run(data, url, lambda client: client.call("POST", "/api/keys", json=body), key)
        except RequestRefused as exc:
            say(f"No key for yourself was made: {exc}", err=True)
            say("No user is an operator yet. Make one: agentic-rag keys create --user NAME --role operator", err=True)
            raise typer.Exit(1) from exc
        say(f"A key for yourself, as the user {own['userId']}, who may do everything: {own['key']}", err=True)


@keys_app.command("list")
def list_keys(as_json: AsJson = False, data: Data = None, url: Url = None, key: Key = None) -> None:
    """List all keys, including revoked ones: id, user, role, domains, groups, creation time, state."""
    page = run(data, url, lambda client: client.call("GET", "/api/keys"), key)
    rows = [
        (
            item["id"],
            item["userId"],
            item["role"] or "as the user",
            ",".join(item["domains"]) or "*",
            ",".join(item["groups"]),
            item["createdAt"],
            f"revoked {item['revokedAt']}" if item["revokedAt"] else "active",
        )
        for item in page["items"]
    ]
    table(("id", "user", "role", "domains", "groups", "made", "state"), rows, page["items"], as_json)


@keys_app.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="Id of the key, as `keys list` shows it.")],
    data: Data = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Revoke a key. Its requests are refused and its sockets closed from now on."""
    run(data, url, lambda client: client.call("DELETE", f"/api/keys/{quote_part(key_id)}"), key)


@audit_app.command("list")
def list_entries(
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many, newest first.")] = 50,
    before: Annotated[int | None, typer.Option(help="Only rows with a smaller number.")] = None,
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """List audit entries: number, time, outcome, actor, action, target, count, details."""
    params = {"limit": str(limit), **({"before": str(before)} if before is not None else {})}
    page = run(data, url, lambda client: client.call("GET", "/api/audit", params=params), key)
    names = ("seq", "at", "outcome", "actor", "action", "target", "count")
    rows = [[*(str(entry[name]) for name in names), json.dumps(entry["details"])] for entry in page["items"]]
    table((*names, "details"), rows, page["items"], as_json)


@audit_app.command("verify")
def verify(
    head: Annotated[
        str | None, typer.Option(help="Head that an earlier run printed: check that no row up to it was rewritten.")
    ] = None,
    data: Data = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Check that no row was changed, removed or inserted. Exit code 1: the log is broken."""
    params = {"head": head} if head is not None else None
    verdict = run(data, url, lambda client: client.call("GET", "/api/audit/verify", params=params), key)
    for problem in verdict["problems"]:
        say(f"row {problem['seq']}: {problem['problem']}", err=True)
    say(f"{verdict['rows']} rows, {'intact' if verdict['intact'] else 'BROKEN'}, head {verdict['head']}")
    sys.stdout.flush()
    if not verdict["intact"]:
        raise typer.Exit(1)
