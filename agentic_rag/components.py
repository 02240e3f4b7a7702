"""Prompt components: the Markdown files of ``{workspace}/prompt/`` as texts for the bootstrap prompt.

Owns which files count, how they are cleaned and cut, and the last good version of a file that broke. Knows
no domain and no model. An edit counts from the next read; nothing is watched.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FILE_LIMIT = 8_000
"""Characters kept of one file."""

TOTAL_LIMIT = 32_000
"""Characters kept of all files together."""

READ_LIMIT = 1024 * 1024
"""Bytes; a larger file is broken, not cut: nobody writes a prompt of that size on purpose."""

_NAMES = r"(?:system|system-reminder|assistant|user|human|tool_use|tool_result|function_calls|function_results)"
_TAGS = re.compile(
    rf"[<＜﹤〈]\s*[/／]?\s*(?:antml:\w+|{_NAMES})\b[^>＞﹥〉\n]*[>＞﹥〉]"
    r"|<\|[\w-]{1,40}\|>|\[/?INST\]|<</?SYS>>",
    re.IGNORECASE,
)
_KEPT_CONTROLS = "\n\t"


@dataclass(frozen=True, slots=True)
class Components:
    """What was read: texts in name order, and ``(file name, problem)`` of files that could not be read."""

    texts: tuple[str, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Kept:
    stamp: tuple[int, int]
    text: str


@dataclass(slots=True)
class ComponentFiles:
    """Reads the components of any workspace. Keeps the last good text of each file.

    `read` blocks for a few system calls (an unchanged file is not opened again), so it is cheap enough for
    the start of every turn.
    """

    _kept: dict[Path, _Kept] = field(default_factory=dict)

    def read(self, workspace: Path) -> Components:
        """Return the components as they are now. Never raises: a broken file is a problem, not a failure."""
        texts: list[str] = []
        problems: list[tuple[str, str]] = []
        for path in _files(workspace / "prompt"):
            try:
                text = self._text(path)
            except (OSError, ValueError) as exc:
                problems.append((path.name, _reason(exc)))
                kept = self._kept.get(path)
                text = kept.text if kept else ""
            if text:
                texts.append(text)
        return Components(_within_total(texts), tuple(problems))

    def _text(self, path: Path) -> str:
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        kept = self._kept.get(path)
        if kept is None or kept.stamp != stamp:
            if status.st_size > READ_LIMIT:
                raise ValueError(f"larger than {READ_LIMIT // 1024} KiB")
            kept = _Kept(stamp, cut(clean(path.read_text(encoding="utf-8-sig")).strip(), FILE_LIMIT))
            self._kept[path] = kept
        return kept.text


def clean(text: str) -> str:
    """Remove control, zero-width and bidirectional characters and whatever looks like a system tag."""
    text = text.replace("\r\n", "\n")
    text = "".join(c for c in text if c in _KEPT_CONTROLS or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))
    while (cleaned := _TAGS.sub("", text)) != text:  # again: removing the inner tag may close an outer one
        text = cleaned
    return text


def cut(text: str, limit: int) -> str:
    """Return at most ``limit`` characters of ``text``; a cut one ends with a visible mark beyond the limit."""
    if len(text) <= limit:
        return text
    return f"{text[:limit].rstrip()}\n[truncated: kept {limit} of {len(text)} characters]"


def _within_total(texts: list[str]) -> tuple[str, ...]:
    kept: list[str] = []
    left = TOTAL_LIMIT
    for text in texts:
        if left <= 0:
            kept.append(f"[truncated: kept 0 of {len(text)} characters]")
            continue
        kept.append(cut(text, left))
        left -= len(text)
    return tuple(kept)


def _files(folder: Path) -> Iterator[Path]:
    """Regular Markdown files in name order; a link could point out of the workspace and does not count."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in sorted(folder.iterdir(), key=lambda item: item.name):
        if path.suffix.lower() == ".md" and not path.name.startswith(".") and not path.is_symlink() and path.is_file():
            yield path


def _reason(exc: Exception) -> str:
    if isinstance(exc, UnicodeDecodeError):
        return f"not UTF-8 at byte {exc.start}"
    if isinstance(exc, OSError):
        return exc.strerror or type(exc).__name__
    return str(exc)
