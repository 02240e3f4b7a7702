"""Create workspace folders, copy them from templates, and remove them.

Knows no record. Everything here blocks.
"""

import json
import shutil
from pathlib import Path

from agentic_rag.base.errors import WorkspaceRefused, refused_write
from agentic_rag.directory.cases import CsvCases, read_cases
from agentic_rag.tools.launch.spec import FILES
from mcp_servers.safe_files import Folder, Refused


def make_workspace(workspace: Path) -> None:
    """Create a workspace's folders.

    Raises:
        WorkspaceRefused: another kind of file is in the place of a folder.
        StorageFull: the disk is full.
    """
    for name in ("documents", "prompt", ".promptx/resource", FILES):
        try:
            Folder(workspace).at(name).make()
        except OSError as exc:
            if (full := refused_write(exc)) is not None:
                raise full from exc
            if isinstance(exc, Refused):
                raise WorkspaceRefused(name, exc.strerror or exc.why) from exc
            raise


def find_misplaced(workspace: Path) -> list[tuple[str, str]]:
    """Return the folders that cannot be used because something else is in their place, each with its kind.

    A missing folder is created on demand. A wrong ``prompt`` is reported by its components.
    """
    misplaced: list[tuple[str, str]] = []
    for name in ("documents", ".promptx", FILES):
        try:
            with Folder(workspace).at(name).descriptor():
                pass
        except Refused as exc:
            misplaced.append((name, exc.strerror or exc.why))
        except OSError:  # missing, or its disk is unavailable: reported on use
            continue
    return misplaced


def copy_template(template: Path, workspace: Path) -> None:
    """Copy to a temporary folder, then rename it, so that a crash leaves no partial workspace."""
    if workspace.exists():
        return
    draft = workspace.with_name(f".{workspace.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(
        template, draft, ignore=shutil.ignore_patterns("domain.json", "cases.json"), copy_function=shutil.copyfile
    )
    for folder in (draft, *(path for path in draft.rglob("*") if path.is_dir())):
        folder.chmod(0o700)  # otherwise it keeps the template's mode
    draft.rename(workspace)


def read_template_cases(template: Path) -> CsvCases:
    """Return the evaluation cases of a template folder, from its ``cases.json`` if there is one."""
    try:
        document = json.loads((template / "cases.json").read_text("utf-8"))
    except FileNotFoundError:
        return CsvCases((), ())
    return read_cases(document, "cases.json")


def remove_workspace(folder: Path, workspace: Path) -> None:
    """Remove a folder that the server created. A folder that the operator linked here is kept."""
    if workspace.parent == folder.absolute() and workspace.is_dir() and not workspace.is_symlink():
        Folder(workspace).remove_tree()
