"""``agentic-rag users``: user accounts and their rights."""

from typing import Annotated

import typer

from agentic_rag.base.json_form import Json
from agentic_rag.commands.line import AsJson, Data, Url, quote_part, run, say, table

users_app = typer.Typer(help="List, create, change, disable, enable and erase users.", no_args_is_help=True)

ERASE_SECONDS = 3600.0

Name = Annotated[str, typer.Argument(help="Name of the user.")]
Grants = Annotated[
    list[str] | None,
    typer.Option("--grant", help="DOMAIN=member, DOMAIN=author or DOMAIN=admin; repeatable."),
]
Operator = Annotated[
    bool | None, typer.Option("--operator/--no-operator", help="Let the user do everything, or no longer.")
]
Display = Annotated[str | None, typer.Option("--display-name", help="The name that is shown.")]


@users_app.command("list")
def list_users(as_json: AsJson = False, data: Data = None, url: Url = None) -> None:
    """List users: name, state, origin, rights, display name."""
    page = run(data, url, lambda client: client.call("GET", "/api/users"))
    rows = [(item["name"], item["state"], item["origin"], _rights(item), item["displayName"]) for item in page["items"]]
    table(("name", "state", "origin", "rights", "shown"), rows, page["items"], as_json)


@users_app.command("create")
def create_user(
    name: Name,
    grant: Grants = None,
    operator: Operator = None,
    display_name: Display = None,
    data: Data = None,
    url: Url = None,
) -> None:
    """Create a user; `keys create --user NAME` makes a key with the user's rights."""
    body: Json = {"name": name, "grants": _grants(grant), "operator": bool(operator), "displayName": display_name or ""}
    created = run(data, url, lambda client: client.call("POST", "/api/users", json=body))
    say(f"{created['name']}: {_rights(created)}")


@users_app.command("change")
def change_user(
    name: Name,
    grant: Grants = None,
    remove: Annotated[list[str] | None, typer.Option(help="DOMAIN to take away; repeatable.")] = None,
    operator: Operator = None,
    display_name: Display = None,
    data: Data = None,
    url: Url = None,
) -> None:
    """Change a user's rights. Grants that are not named stay. Revoked rights end at once."""
    path, new_grants = f"/api/users/{quote_part(name)}", _grants(grant)
    body: Json = {"operator": operator, "displayName": display_name}
    if new_grants or remove:
        old_grants = run(data, url, lambda client: client.call("GET", path))["grants"]
        body["grants"] = {
            domain: grant_name
            for domain, grant_name in {**old_grants, **new_grants}.items()
            if domain not in (remove or ())
        }
    changed = run(data, url, lambda client: client.call("PATCH", path, json=body))
    say(f"{changed['name']}: {_rights(changed)}")


@users_app.command("disable")
def disable_user(name: Name, data: Data = None, url: Url = None) -> None:
    """Disable a user: keys, sign-ins, sockets and streams end at once."""
    run(data, url, lambda client: client.call("POST", f"/api/users/{quote_part(name)}/disable"))
    say(f"{name} is disabled: keys, sign-ins, sockets and streams have ended.")


@users_app.command("enable")
def enable_user(name: Name, data: Data = None, url: Url = None) -> None:
    """Enable a disabled user, with the keys that were not revoked."""
    run(data, url, lambda client: client.call("POST", f"/api/users/{quote_part(name)}/enable"))
    say(f"{name} is let in again.")


@users_app.command("erase")
def erase_user(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Erase a person for good: conversations, memories, logins and keys. The usage is kept under the printed number.

    This cannot be undone. If it is interrupted, run it again to finish.
    """
    if not yes:
        typer.confirm(f"Erase {name} with all conversations, memories and keys? It cannot be undone.", abort=True)
    path = f"/api/users/{quote_part(name)}"
    number = run(data, url, lambda client: client.call("DELETE", path, seconds=ERASE_SECONDS))["number"]
    say(f"{name} is erased; usage stays under #{number}.")


def _grants(texts: list[str] | None) -> dict[str, str]:
    grants = {}
    for text in texts or ():
        domain, separator, grant = text.rpartition("=")
        if not separator or not domain:
            raise typer.BadParameter(f"{text!r}: DOMAIN=member, DOMAIN=author or DOMAIN=admin is expected.")
        grants[domain] = grant
    return grants


def _rights(user: Json) -> str:
    if user["operator"]:
        return "operator"
    return ",".join(f"{domain}={grant}" for domain, grant in sorted(user["grants"].items())) or "nothing"
