"""Packed data folders: `make_fixture` packs one with content of every kind, and `lay_out` unpacks it elsewhere.

A fixture is a tar in zstd with ``data`` (the folder as its server left it, without the index, which is derived),
``backup.tar.zst`` and ``about.json``: the ids of its content, and a key that opens only this folder.
"""

import io
import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import anyio.to_thread
import zstandard

from agentic_rag.backup.contents import BackupOptions
from agentic_rag.backup.making import make_backup

from .every_kind import fill_all
from .making import closed_files

ABOUT = "about.json"
LEFT_OUT = ("lock", "index", "server.json", "incoming")


async def make_fixture(folder: Path, target: Path) -> None:
    """Make a folder of this version in ``folder`` and pack it."""
    with closed_files():
        filled = await fill_all(folder)
        data = filled.data
        await make_backup(data / "agentic-rag.db", data, folder / "backup.tar.zst", BackupOptions(with_key=True))
    await anyio.to_thread.run_sync(_pack, folder, data, json.dumps(filled.to_json()), target)


def _pack(folder: Path, data: Path, facts: str, target: Path) -> None:
    archive_bytes = io.BytesIO()
    (folder / ABOUT).write_text(facts)
    with tarfile.open(fileobj=archive_bytes, mode="w") as tar:
        tar.add(folder / ABOUT, ABOUT, filter=_anonymous)
        tar.add(folder / "backup.tar.zst", "backup.tar.zst", filter=_anonymous)
        for path in sorted(data.rglob("*")):
            inside = path.relative_to(data)
            if inside.parts[0] not in LEFT_OUT and (path.is_file() or path.is_dir()):
                tar.add(path, f"data/{inside}", recursive=False, filter=_anonymous)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(zstandard.ZstdCompressor(level=19).compress(archive_bytes.getvalue()))


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The machine and the account that made the fixture stay private."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def lay_out(fixture: Path, folder: Path) -> Path:
    """Unpack a fixture, move its workspaces to where they lie now, and return its data folder."""
    with tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().decompress(fixture.read_bytes()))) as tar:
        tar.extractall(folder, filter="data")
    data = folder / "data"
    for path in data.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    with closing(sqlite3.connect(data / "agentic-rag.db")) as connection:  # by hand, as the operator who moves it would
        connection.execute("UPDATE domains SET workspace = ? || id", (f"{data / 'workspaces'}/",))
        connection.commit()
    return data
