"""``agentic-rag roles``: list, show, check and create roles.

All commands use REST, except `check` of a folder, which needs neither server nor data folder.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.json_form import Json, from_json
from agentic_rag.commands.line import AsJson, Data, Url, printable, quote_part, run, say, table
from mcp_servers.promptx.builtin import BUILTIN_ROLES
from mcp_servers.promptx.lint import Finding
from mcp_servers.promptx.rolefiles import RESOURCE_FOLDER, Reading, RoleFileIndex, collect
from mcp_servers.safe_files import Folder

if TYPE_CHECKING:
    from agentic_rag.commands.client import ServerClient

MAX_BYTES = 512 * 1024
"""Maximum bytes of one role file; the server accepts less."""

roles_app = typer.Typer(help="List, show, check and make the roles of a domain.", no_args_is_help=True)

Domain = Annotated[str, typer.Argument(help="Id of the domain.")]
Role = Annotated[str, typer.Argument(help="Id of the role.")]


@roles_app.command("list")
def list_roles(domain: Domain, as_json: AsJson = False, data: Data = None, url: Url = None) -> None:
    """List the roles of a domain: id, title, source, number of findings."""
    roles = run(data, url, lambda client: client.call("GET", _path(domain)))
    rows = [[item["id"], item["title"], item["source"], str(item["findings"])] for item in roles["items"]]
    table(["id", "title", "source", "findings"], rows, roles["items"], as_json)


@roles_app.command("show")
def show_role(domain: Domain, role: Role, data: Data = None, url: Url = None) -> None:
    """Show a role as the model gets it. Findings go to stderr. Exit code 1: the role cannot be used."""
    view = run(data, url, lambda client: client.call("GET", _path(domain, role)))
    if view["text"] is not None:
        say(view["text"])
    _print(_findings(view["findings"]), err=True)
    if view["text"] is None:
        raise typer.Exit(1)


@roles_app.command("check")
def check_roles(
    target: Annotated[
        str,
        typer.Argument(
            help="Id of a domain, or a folder: a workspace or any folder with role files. "
            "If a folder has this name, the folder is meant. ./NAME is always a folder.",
        ),
    ],
    data: Data = None,
    url: Url = None,
) -> None:
    """Check all role files of a domain or a folder. Exit code 1: a file has an error.

    Each line has the form file:line:column: severity code: message (hint).
    """
    if os.sep in target or Path(target).is_dir():
        findings = check_folder(Path(target))
    else:
        path = f"/api/domains/{quote_part(target)}/role-findings"
        findings = _findings(run(data, url, lambda client: client.call("GET", path))["items"])
    _print(findings)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)


@roles_app.command("new")
def new_role(domain: Domain, role: Role, data: Data = None, url: Url = None) -> None:
    """Create a role in the domain's workspace from the template, and print its files.

    Writes and checks a role, a thought and an execution file. Existing files are never replaced.
    """
    answer = run(data, url, lambda client: client.call("PUT", _path(domain, role), json={"replace": False}))
    for path in answer["written"]:
        say(path)
    _print(_findings(answer["findings"]), err=True)


@roles_app.command("push")
def push_roles(
    domain: Domain,
    folder: Annotated[Path, typer.Argument(help="A workspace, or any folder with role files.", file_okay=False)],
    data: Data = None,
    url: Url = None,
) -> None:
    """Write the roles of a folder into a domain, with the thoughts and executions beside them, and print the files.

    A folder with an error is not sent. You need the grant `author` of the domain.
    """
    findings = check_folder(folder)
    _print(findings, err=True)
    roles = files_by_role(folder)
    if not roles or any(finding.severity == "error" for finding in findings):
        say("no role is sent." if roles else f"there is no role in {folder}.", err=True)
        raise typer.Exit(1)
    for role, files in roles.items():
        body = {"files": files}
        answer = run(data, url, partial(_put_role, path=_path(domain, role), body=body))
        for path in answer["written"]:
            say(path)


async def _put_role(client: "ServerClient", path: str, body: Json) -> Json:
    answer: Json = await client.call("PUT", path, json=body)
    return answer


@roles_app.command("export-skill")
def export_skill(
    domain: Domain,
    role: Role,
    folder: Annotated[Path, typer.Argument(help="Folder in which to create the skill.")] = Path(),
    data: Data = None,
    url: Url = None,
) -> None:
    """Write a role as a skill, FOLDER/NAME/SKILL.md, and print its path. An existing file is not replaced."""
    skill = run(data, url, lambda client: client.call("GET", f"{_path(domain, role)}/skill"))
    path = folder / skill["name"] / "SKILL.md"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(skill["content"])
    except OSError as exc:
        raise InvalidInput("folder", f"{path} cannot be written: {exc.strerror}.") from exc
    say(str(path))


def check_folder(folder: Path) -> list[Finding]:
    """Return the findings of a folder's role files, by file and line. References may point to built-in files.

    Raises:
        InvalidInput: there is no such folder.
    """
    if not folder.is_dir():
        raise InvalidInput("folder", f"there is no folder {str(folder)!r}.")
    whole = folder.absolute()
    resources = Folder(whole).at(RESOURCE_FOLDER)
    root = resources if resources.is_there() else Folder(whole)
    index = RoleFileIndex()
    collect(index, "builtin", Folder(BUILTIN_ROLES, owned=False))
    index.findings.clear()
    collect(index, "workspace", root)
    reading = Reading(index)
    findings = [*index.findings, *_lint(reading)]
    # Findings name files as in a workspace. Here they get paths that an editor can open.
    base = root.path.parent.parent
    placed = [
        replace(finding, file=(folder / (base / finding.file).relative_to(whole)).as_posix()) for finding in findings
    ]
    return sorted(placed, key=lambda finding: (finding.file, finding.line, finding.column))


def files_by_role(folder: Path) -> dict[str, list[Json]]:
    """Return the files of each role in the server's form: all files in the folder of the role's own file."""
    whole = Folder(folder.absolute())
    resources = whole.at(RESOURCE_FOLDER)
    index = RoleFileIndex()
    collect(index, "workspace", resources if resources.is_there() else whole)
    by_role: dict[str, list[Json]] = {}
    for (kind, role), own in sorted(index.winners.items()):
        if kind != "role":
            continue
        around = own.inner.rpartition("/")[0]
        near = [file for file in index.winners.values() if not around or file.inner.startswith(f"{around}/")]
        near = [file for file in near if file.key[0] != "role" or file is own]
        by_role[role] = [
            {"kind": file.key[0], "id": file.key[1], "content": file.root.read(file.inner, MAX_BYTES).decode()}
            for file in sorted(near, key=lambda file: file.inner)
        ]
    return by_role


def _findings(items: Iterable[Json]) -> list[Finding]:
    """Return the findings in a server's answer."""
    return [from_json(Finding, item) for item in items]


def _lint(reading: Reading) -> Iterable[Finding]:
    for file in reading.index.files:
        if file.source == "workspace":
            yield from reading.lint(file)


def _print(findings: Iterable[Finding], *, err: bool = False) -> None:
    for finding in findings:
        say(printable(str(finding)), err=err)


def _path(domain: str, role: str | None = None) -> str:
    path = f"/api/domains/{quote_part(domain)}/roles"
    return path if role is None else f"{path}/{quote_part(role)}"
