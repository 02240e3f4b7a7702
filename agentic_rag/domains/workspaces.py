"""Workspace folders on disk: made, copied from a template, removed.

Owns their layout and which of them are ours to remove. Knows no record. Everything here blocks.
"""

import shutil
from pathlib import Path

from agentic_rag.errors import WorkspaceRefused, refused_write
from agentic_rag.tools.launch.spec import FILES
from mcp_servers.beneath import Folder, Refused


def make_workspace(workspace: Path) -> None:
    """Make a workspace's folders.

    Raises:
        WorkspaceRefused: something else stands where one should be.
        StorageFull: the disk takes no folder.
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
    """Return the folders that cannot be used, since something else stands in their place, each with what it is.

    One that is missing is made by who needs it. What stands in place of ``prompt`` its components tell.
    """
    found: list[tuple[str, str]] = []
    for name in ("documents", ".promptx", FILES):
        try:
            with Folder(workspace).at(name).descriptor():
                pass
        except Refused as exc:
            found.append((name, exc.strerror or exc.why))
        except OSError:  # missing, or its disk is away: that is told where it is used
            continue
    return found


def copy_template(template: Path, workspace: Path) -> None:
    """Copy beside, then rename: a start that is killed leaves no half workspace under the real name."""
    if workspace.exists():
        return
    draft = workspace.with_name(f".{workspace.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(template, draft, ignore=shutil.ignore_patterns("domain.json"), copy_function=shutil.copyfile)
    for folder in (draft, *(each for each in draft.rglob("*") if each.is_dir())):
        folder.chmod(0o700)  # it would have the template's mode
    draft.rename(workspace)


def remove_workspace(folder: Path, workspace: Path) -> None:
    """Remove a folder the server made; one that the operator linked from elsewhere is not ours to remove."""
    if workspace.parent == folder.absolute() and workspace.is_dir() and not workspace.is_symlink():
        Folder(workspace).remove_tree()
