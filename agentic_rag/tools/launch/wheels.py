"""Reads the facts of a PyPI wheel without running any of it.

Owns the parts of the archive that are read: metadata, programs, unpacked size. Blocks.
"""

import hashlib
import re
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from agentic_rag.archive.zips import UNREADABLE, open_zip
from agentic_rag.base.errors import PackageProblem
from agentic_rag.tools.launch.catalogue import normal_name
from agentic_rag.tools.launch.facts import MAX_LISTED, TEXT_CHARS, Facts

MAX_TEXT_BYTES = 1 << 20
"""Maximum size of a wheel's metadata that is read."""
_PROGRAM = re.compile(r"^\s*([A-Za-z0-9][\w.-]{0,100})\s*=", re.MULTILINE)


def read_wheel(path: Path) -> Facts:
    """Return the facts of a wheel.

    Raises:
        PackageProblem: The file is not a wheel.
    """
    try:
        with path.open("rb") as file, open_zip(file) as archive:
            entries = archive.infolist()
            head = HeaderParser().parsestr(_read(archive, "METADATA"))
            programs = _programs(_read(archive, "entry_points.txt"))
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except UNREADABLE as exc:
        raise PackageProblem(path.name, f"it cannot be read as a wheel: {exc}") from exc
    needed = [
        requirement.partition(";")[0].strip()
        for requirement in head.get_all("Requires-Dist", [])
        if "extra ==" not in requirement
    ]
    return Facts(
        registry="pypi",
        name=normal_name("pypi", str(head.get("Name", ""))),
        version=str(head.get("Version", "")),
        integrity=f"sha256-{digest}",
        license=str(head.get("License-Expression") or head.get("License") or "").partition("\n")[0][:TEXT_CHARS],
        size_bytes=sum(entry.file_size for entry in entries),
        file_count=len(entries),
        dependencies=tuple(requirement[:TEXT_CHARS] for requirement in needed[:MAX_LISTED]),
        programs=tuple(programs[:MAX_LISTED]),
    )


def _read(archive: zipfile.ZipFile, name: str) -> str:
    """Return a text of the wheel's own folder; empty if there is none."""
    info = next((entry for entry in archive.infolist() if entry.filename.endswith(f".dist-info/{name}")), None)
    if info is None:
        return ""
    with archive.open(info) as file:
        return file.read(MAX_TEXT_BYTES).decode("utf-8", "replace")


def _programs(text: str) -> list[str]:
    section = text.partition("[console_scripts]")[2].partition("\n[")[0]
    return sorted(_PROGRAM.findall(section))
