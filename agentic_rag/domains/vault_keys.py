"""The keys that seal secrets, from the operator's setting or a key file.

Defines their form, the check for weak keys, and the key file: mode 0600, replaced atomically. Knows no secret and no
database.

The first key seals. The others only open secrets that were sealed before a rotation ended.
"""

import base64
import binascii
import hashlib
import itertools
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from agentic_rag.base.startup_errors import BadConfiguration

SETTING = "AGENTIC_RAG_SECRET_KEY"
_REMEDY = "Make one with: openssl rand -base64 32"
_RESTORE = "Put it back from a backup; where no secrets are stored, take it away, and a new one is made."
FILE_NAME = "secret.key"
KEY_BYTES = 32
ID_BYTES = 8

MIN_DISTINCT = 16
"""Of 32 random bytes, fewer than this many differ once in 10^12 keys; patterns and repetitions have fewer."""


@dataclass(frozen=True, slots=True)
class SealingKey:
    """A sealing key. ``id`` names the key in sealed values and reveals nothing about it."""

    data: bytes = field(repr=False)

    @property
    def id(self) -> bytes:
        return hashlib.sha256(b"agentic-rag key id\x00" + self.data).digest()[:ID_BYTES]


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys in use; ``keys[0]`` seals. ``file`` is the key file, None if the operator's setting holds the keys."""

    keys: tuple[SealingKey, ...]
    file: Path | None = None

    @property
    def current(self) -> SealingKey:
        return self.keys[0]

    def find(self, key_id: bytes) -> SealingKey | None:
        return next((key for key in self.keys if key.id == key_id), None)


def configured_keys(setting: str, folder: Path) -> Keyring:
    """Return the keys of the operator's setting, then those of a key file for opening.

    Raises:
        BadConfiguration: a key is malformed or weak.
    """
    keys = [parse_key(part, SETTING) for part in setting.split(",")]
    file = folder / FILE_NAME
    if file.exists():
        keys += read_file(file)
    return Keyring(tuple(dict.fromkeys(keys)))


def file_keys(folder: Path, *, make: bool) -> Keyring:
    """Return the keys of the key file. ``make`` creates the file with a new key if it is missing.

    Raises:
        BadConfiguration: the file is missing, readable by others, malformed or weak.
    """
    file = folder / FILE_NAME
    if not file.exists():
        if not make:
            raise BadConfiguration(
                SETTING,
                f"{file} is missing, and secrets are stored that were sealed with its key. "
                f"Put the file back or give the key in {SETTING}.",
            )
        write_file(file, (SealingKey(os.urandom(KEY_BYTES)),))
    return Keyring(tuple(read_file(file)), file)


def parse_key(text: str, setting: str, remedy: str = _REMEDY) -> SealingKey:
    """Return a key written as 64 hex digits or as base64 of 32 bytes. ``remedy`` ends the error text.

    Raises:
        BadConfiguration: the text is no key, or the key is not random. The message does not quote it.
    """
    text = text.strip()
    data = b""
    if re.fullmatch(r"[0-9a-fA-F]{64}", text):
        data = bytes.fromhex(text)
    elif re.fullmatch(r"[A-Za-z0-9+/_-]{43}=?", text):
        try:
            data = base64.b64decode(text.rstrip("=").replace("-", "+").replace("_", "/") + "=", validate=True)
        except binascii.Error:
            data = b""
    if len(data) != KEY_BYTES:
        raise BadConfiguration(setting, f"32 bytes as base64 or hex are expected. {remedy}")
    if _weak(data):
        raise BadConfiguration(setting, f"this key is no random number. {remedy}")
    return SealingKey(data)


def _weak(data: bytes) -> bool:
    steps = {(after - before) % 256 for before, after in itertools.pairwise(data)}
    # Few distinct bytes, an arithmetic series, or printable text such as a password.
    return len(set(data)) < MIN_DISTINCT or len(steps) == 1 or all(32 <= byte < 127 for byte in data)


def read_file(file: Path) -> list[SealingKey]:
    """Return the keys of a key file, one per line.

    Raises:
        BadConfiguration: the file is not a regular file readable by its owner only, or its content is not a key.
    """
    try:
        # O_NONBLOCK: a named pipe in place of the file must not block the start.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        raise BadConfiguration(SETTING, f"{file} cannot be read: {exc.strerror}") from exc
    with open(descriptor, encoding="ascii", errors="replace") as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.geteuid():
            raise BadConfiguration(SETTING, f"{file} must be a file that only its owner can read: chmod 600 {file}")
        lines = opened.read(10_000).split()
    if not lines:
        raise BadConfiguration(SETTING, f"{file} is empty. {_RESTORE}")
    return [parse_key(line, str(file), _RESTORE) for line in lines]


def write_file(file: Path, keys: tuple[SealingKey, ...]) -> None:
    """Replace the key file atomically: after a crash it holds the old or the new keys."""
    draft = file.with_name(f".{file.name}.new")
    draft.unlink(missing_ok=True)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as opened:
            opened.write("".join(f"{base64.b64encode(key.data).decode()}\n" for key in keys))
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(file)
        # The rename itself survives a power loss only once the folder is synced.
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise BadConfiguration(SETTING, f"{file} cannot be written: {exc.strerror}") from exc
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
