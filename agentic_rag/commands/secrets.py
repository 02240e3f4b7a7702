"""``agentic-rag secrets``: set, list and delete a domain's secrets, and rotate their key.

A value is read from standard input, because every process could read an argument. `rotate` works on the data folder
itself, so no server may run on it; the other commands use REST.
"""

import sys
from functools import partial
from typing import Annotated

import anyio
import typer

from agentic_rag.commands.line import AsJson, Data, Url, quote_part, run, say, settings_of, table

secrets_app = typer.Typer(help="Set, list and delete secrets of a domain; rotate the key.", no_args_is_help=True)

Domain = Annotated[str, typer.Argument(help="Id of the domain.")]
Name = Annotated[str, typer.Argument(help="Name of the secret, as ${NAME} uses it.")]


@secrets_app.command("set")
def set_secret(domain: Domain, name: Name, data: Data = None, url: Url = None) -> None:
    """Store a secret. Its value is read from standard input."""
    if sys.stdin.isatty():
        value = typer.prompt(f"Value of {name}", hide_input=True, err=True)
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    run(data, url, lambda client: client.call("PUT", _path(domain, name), json={"value": value}))


@secrets_app.command("list")
def list_secrets(domain: Domain, as_json: AsJson = False, data: Data = None, url: Url = None) -> None:
    """List the names of a domain's secrets. No command shows a value."""
    page = run(data, url, lambda client: client.call("GET", _path(domain)))
    rows = [(item["name"], "…" + item["last4"] if "last4" in item else "set") for item in page["items"]]
    table(("name", "value"), rows, page["items"], as_json)


@secrets_app.command("delete")
def delete_secret(domain: Domain, name: Name, data: Data = None, url: Url = None) -> None:
    """Delete a secret."""
    run(data, url, lambda client: client.call("DELETE", _path(domain, name)))


@secrets_app.command("rotate")
def rotate_key(
    data: Data = None,
    drop_unreadable: Annotated[
        bool, typer.Option("--drop-unreadable", help="Delete secrets that no key here can open.")
    ] = False,
) -> None:
    """Seal all secrets with a new key, or with the first key in AGENTIC_RAG_SECRET_KEY. The command can be repeated."""
    from agentic_rag.access.acts import act
    from agentic_rag.backup.upgrading import open_database
    from agentic_rag.domains.vault import rotate
    from agentic_rag.operations.data_folder import DataFolder
    from agentic_rag.store.audit import append

    settings = settings_of(data)

    async def sealed_anew() -> tuple[int, int]:
        folder = DataFolder.of(settings)
        try:
            database = await open_database(settings)
            try:
                done = await rotate(database, settings.data, settings.secret_key, drop_unreadable=drop_unreadable)
                entry = act("secret.rotate", sealed=done[0], dropped=done[1])
                await database.write(partial(append, entry=entry), durable=True)
                return done
            finally:
                await database.aclose()
        finally:
            folder.release()

    sealed, dropped = anyio.run(sealed_anew)
    say(f"{sealed} secrets are sealed with the new key" + (f", {dropped} were dropped." if dropped else "."))
    if settings.secret_key is not None and settings.secret_key.get_secret_value():
        say("Only the first key of AGENTIC_RAG_SECRET_KEY is needed from now on.")


def _path(domain: str, name: str | None = None) -> str:
    path = f"/api/domains/{quote_part(domain)}/secrets"
    return path if name is None else f"{path}/{quote_part(name)}"
