"""The data folder: who owns it, and where its server listens.

Owns two files: ``lock``, held by the one process that may write the folder, and ``server.json``, by which the
command line finds a running server. Knows nothing of what else lies there.
"""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agentic_rag.errors import BadConfiguration, DataFolderOwned
from agentic_rag.store.clock import now


@dataclass(slots=True)
class DataFolder:
    """A folder this process owns until `release` (or its death: the kernel drops the lock)."""

    path: Path
    _lock: IO[str]

    @classmethod
    def own(cls, path: Path) -> "DataFolder":
        """Make the folder if needed and take its lock.

        Raises:
            DataFolderOwned: another process has it.
            BadConfiguration: it cannot be made or written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = (path / "lock").open("a+", encoding="utf-8")
        except OSError as exc:
            raise BadConfiguration("AGENTIC_RAG_DATA", f"{path} cannot be used: {exc.strerror}") from exc
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            lock.seek(0)
            owner = lock.read(200).strip() or "another process"
            lock.close()
            raise DataFolderOwned(str(path), owner) from exc
        lock.truncate(0)
        lock.write(f"process {os.getpid()} (since {now()})")
        lock.flush()
        return cls(path, lock)

    def announce(self, url: str, key: str) -> None:
        """Tell the command line where the server listens and the key it comes in with; only our user reads it."""
        target = self.path / "server.json"
        draft = target.with_suffix(".new")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump({"url": url, "pid": os.getpid(), "key": key}, file)
        draft.replace(target)

    def release(self) -> None:
        """Give the folder back. Idempotent."""
        if not self._lock.closed:
            (self.path / "server.json").unlink(missing_ok=True)
            self._lock.truncate(0)
            self._lock.close()


def find_server(path: Path) -> str | None:
    """Return the address of the server that owns the folder; None when nobody does, or it does not listen yet."""
    return _read_announcement(path, "url")


def find_key(path: Path) -> str | None:
    """Return the key with which the folder's own user comes in to that server."""
    return _read_announcement(path, "key")


def _read_announcement(path: Path, name: str) -> str | None:
    try:
        with (path / "lock").open(encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass  # somebody holds it: the address is true
    except OSError:
        return None
    else:
        return None
    try:
        return str(json.loads((path / "server.json").read_text(encoding="utf-8"))[name])
    except (OSError, ValueError, KeyError):
        return None
