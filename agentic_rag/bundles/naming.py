"""Names of a bundle's files in the target domain: files renamed by an export get their own names again.

No two files get the same name. Blocks: files are renamed in the folder of the import.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from agentic_rag.base.errors import StorageFull
from agentic_rag.bundles.contents import memories_of, texts_of
from agentic_rag.bundles.form import DOCUMENTS, MEMORIES, ROLES, portable_names
from agentic_rag.bundles.receiving import Received
from mcp_servers.safe_files import is_text


def own_names(members: Collection[str], known: Iterable[str]) -> dict[str, str]:
    """Map the members of one folder that represent a file of another name to that name. Pure.

    If a file has exactly the name of a member, the member represents that file, and not one that an export would rename
    to this name.
    """
    there = [each for each in known if is_text(each)]
    own = {portable: name for name, portable in portable_names(there).items() if portable != name}
    exact = set(there).intersection(members)
    return {each: own[each] for each in members if each in own and each not in exact and own[each] not in members}


def give_own_names(received: Received, workspace: str, documents: Iterable[str]) -> Received:
    """Return a received bundle whose files have their names in the workspace. ``documents``: the domain's paths.

    Raises:
        StorageFull: the disk is full.
    """
    names: dict[str, str] = {}
    texts = texts_of(workspace)
    for folder, known in {**texts, MEMORIES: memories_of(texts[ROLES]), DOCUMENTS: documents}.items():
        members = {each.path.removeprefix(folder) for each in received.manifest.files if each.path.startswith(folder)}
        names |= {folder + member: folder + own for member, own in own_names(members, known).items()}
    try:
        for member, own in names.items():
            _rename(received.files / member, received.files / own)
    except OSError as exc:
        raise StorageFull(exc.strerror or "unknown reason") from exc
    files = tuple(replace(each, path=names.get(each.path, each.path)) for each in received.manifest.files)
    return replace(received, manifest=replace(received.manifest, files=files))


def _rename(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)
