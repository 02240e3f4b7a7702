"""Prompt components: the Markdown files of ``{workspace}/prompt/`` as texts for the bootstrap prompt.

Decides which files count, how they are cleaned and cut, and keeps the last good version of a broken file. Knows no
domain and no model. An edit takes effect at the next read; nothing is watched.
"""

import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from mcp_servers.safe_files import Folder, FolderEntry, Kind, is_text

FILE_LIMIT = 8_000
"""Maximum characters of one file."""

TOTAL_LIMIT = 32_000
"""Maximum characters of all files together."""

READ_LIMIT = 256 * 1024
"""Maximum bytes; a larger file is refused instead of cut, because no real prompt is that large."""

_NAMES = (
    r"(?:system(?:[-_ ]?(?:reminder|prompt|message|instructions?))?|developer|assistant|user|human"
    r"|tool_use|tool_result|tool_response|function_calls|function_results)"
)
_TAG = re.compile(
    rf"<\s{{0,8}}/?\s{{0,8}}(?:antml:\w+|{_NAMES})\b[^<>\n]*>|<\|[\w-]{{1,40}}\|>",
    re.IGNORECASE,
)
"""A system tag between one ``<`` and the next ``>``."""
_SHORT_TAG = re.compile(r"(?:\[/?INST\]|<</?SYS>>)\Z", re.IGNORECASE)
_SHORT_TAG_CHARS = 8
_PIECE = re.compile(r"[^<>\]]*[<>\]]?")
"""A piece of text up to and including the next character that may begin or end a tag."""
_KEPT_CONTROLS = "\n\t"
_REMOVED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_INVISIBLE = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x3164, 0xFFA0))
) | frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
"""Invisible letters and marks: fillers, joiners, and variation selectors, which can hide text."""
_LOOK_ALIKE = str.maketrans(
    "аеорсухѕіјһԁмтнгкεορυιαѵտո﹤＜〈‹⟨﹥＞〉›⟩",
    "aeopcyxsijhdmthrkeopuiavtn<<<<<>>>>>",
)
"""Cyrillic, Greek and Armenian letters, and brackets, that look like the characters of a tag."""


@dataclass(frozen=True, slots=True)
class Components:
    """The result of a read: texts in name order, with the names of their files.

    ``problems`` holds ``(file name, problem)`` of unreadable files, ``cuts`` the same of files that were cut.
    """

    texts: tuple[str, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    names: tuple[str, ...] = ()
    cuts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _CachedFile:
    """A good version of a file: its kept text, and the length of the whole."""

    stamp: tuple[int, ...]
    text: str
    length: int


@dataclass(slots=True)
class ComponentFiles:
    """Reads the components of any workspace, and keeps the last good text of each file.

    `read` blocks for a few system calls; an unchanged file is not opened again. Thread-safe.
    """

    _files_by_folder: dict[Folder, dict[str, _CachedFile]] = field(default_factory=dict)
    """By folder and file name."""

    def read(self, workspace: Path, drafts: Mapping[str, str | None] | None = None) -> Components:
        """Return the current components. Never raises: a broken file becomes a problem in the result.

        ``drafts`` maps file names to texts that replace the files, None to hide a file. Drafts are not kept.
        """
        folder = Folder(workspace).at("prompt")
        cached = dict(self._files_by_folder.get(folder, {}))  # another thread may read the same folder
        problems: list[tuple[str, str]] = []
        try:
            entries = [entry for entry in folder.entries() if counts(entry.name)]
        except OSError as exc:  # the folder cannot be listed now: use the last result
            problems.append(("", _reason(exc)))
        else:
            # A later file of that name must not get the old text.
            for name in cached.keys() - {entry.name for entry in entries}:
                del cached[name]
            for entry in entries:
                try:
                    cached[entry.name] = _read(folder, entry, cached.get(entry.name))
                except (OSError, ValueError) as exc:
                    problems.append((entry.name, _reason(exc)))
        self._files_by_folder[folder] = cached
        if drafts:
            cached = _with_drafts(cached, drafts)
            problems = [(name, problem) for name, problem in problems if name not in drafts]
        usable = [(name, cached[name]) for name in sorted(cached) if cached[name].text]
        texts, cuts = _within_total(usable)
        return Components(texts, tuple(problems), tuple(name for name, _ in usable), cuts)


_STRANGE: dict[Kind, str] = {
    "link": "it is a link, and links are not followed: put a copy here",
    "folder": "it is a folder",
    "other": "it is not a regular file",
}


def _read(folder: Folder, entry: FolderEntry, cached: _CachedFile | None) -> _CachedFile:
    """Return the file's good version, from the cache if the file is unchanged."""
    if entry.status is None:
        raise ValueError(_STRANGE[entry.kind])
    stamp = _stamp(entry.status)
    if cached is not None and cached.stamp == stamp:
        return cached
    return _clean_file(folder.read(entry.name, READ_LIMIT).decode("utf-8-sig"), stamp)


def _clean_file(text: str, stamp: tuple[int, ...] = ()) -> _CachedFile:
    cleaned, length = clean_within(text, FILE_LIMIT)
    return _CachedFile(stamp, cleaned, length)


def _with_drafts(files: Mapping[str, _CachedFile], drafts: Mapping[str, str | None]) -> dict[str, _CachedFile]:
    drafted = {name: _clean_file(text) for name, text in drafts.items() if text is not None}
    return {**{name: file for name, file in files.items() if name not in drafts}, **drafted}


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def clean_within(text: str, limit: int) -> tuple[str, int]:
    """Cut a text to ``limit`` characters and clean it. Returns it with the length of the whole, for `cut`.

    The cut comes first, because a stranger's text may be a megabyte long, and cleaning reads each character.
    """
    text = text.strip()
    cleaned = clean(text[:limit]).strip()
    return cleaned, len(cleaned) if len(text) <= limit else len(text)


def clean(text: str) -> str:
    """Remove control, zero-width and bidirectional characters and all look-alikes of system tags, in linear time."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    return _without_tags("".join(c for c in text if c in _KEPT_CONTROLS or not _is_hidden(c)))


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _REMOVED or char in _INVISIBLE


def _without_tags(text: str) -> str:
    """Remove tags in one pass, including tags that only form when an inner tag is removed.

    Tags are searched in the plain form of the text, which has one character for each character of the text. A tag
    always ends with the last added character, so after its removal nothing must be searched again.
    """
    plain = text if text.isascii() else "".join(map(_plain, text))
    pieces: list[str] = []
    kept_plain: list[str] = []
    brackets: list[int] = []
    """Indices in ``pieces`` of each ``<``, and of each ``>`` that ends no tag: a tag contains neither."""
    for piece in _PIECE.finditer(plain):
        begin, end = piece.span()
        pieces += text[begin:end]
        kept_plain += plain[begin:end]
        last = plain[end - 1] if end > begin else ""
        if last in ("<", ">"):
            brackets.append(len(pieces) - 1)
        if last in (">", "]") and (start := _tag_start(kept_plain, brackets)) is not None:
            # Both are cut at the same place: they have one item for each character.
            del pieces[start:], kept_plain[start:]
            while brackets and brackets[-1] >= start:
                brackets.pop()
    return "".join(pieces)


def _tag_start(plain: Sequence[str], brackets: Sequence[int]) -> int | None:
    """Return the start of a tag that ends with the last character of ``plain``, or None."""
    short = _SHORT_TAG.search("".join(plain[-_SHORT_TAG_CHARS:]))
    if short is not None:
        return len(plain) - len(short[0])
    # A final ``>`` is the last bracket, so the one before it may open the tag.
    opening = brackets[-2] if len(brackets) > 1 else None
    if plain[-1] == ">" and opening is not None and plain[opening] == "<":
        return opening if _TAG.fullmatch("".join(plain[opening:])) else None
    return None


@lru_cache(4096)
def _plain(char: str) -> str:
    """Return the ASCII character that looks like this character, if there is one."""
    folded = unicodedata.normalize("NFKC", char)
    return (folded if len(folded) == 1 else char).casefold()[:1].translate(_LOOK_ALIKE) or char


def cut(text: str, limit: int, length: int | None = None) -> str:
    """Return at most ``limit`` characters of ``text``. If it is cut, a visible mark follows beyond the limit.

    ``length`` is the length of the whole, if ``text`` is only its beginning.
    """
    whole = len(text) if length is None else length
    beginning = text[:limit]
    if len(beginning) == whole:
        return text
    return f"{beginning}\n[truncated: kept {len(beginning)} of {whole} characters]".lstrip("\n")


def _within_total(files: Sequence[tuple[str, _CachedFile]]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the texts in name order, limited to `TOTAL_LIMIT` characters in all, and the files that were cut."""
    texts: list[str] = []
    cuts: list[tuple[str, str]] = []
    chars_left = TOTAL_LIMIT
    for name, file in files:
        texts.append(cut(file.text, chars_left, file.length))
        used = min(chars_left, len(file.text))
        if used < file.length:
            limit, of = (TOTAL_LIMIT, "all files together") if used < len(file.text) else (FILE_LIMIT, "one file")
            problem = f"cut: {used:,} of {file.length:,} characters are used; the limit of {of} is {limit:,}"
            cuts.append((name, problem))
        chars_left -= used
    return tuple(texts), tuple(cuts)


def counts(name: str) -> bool:
    """Return whether a file with this name is a component. An undecodable name does not count."""
    return name.lower().endswith(".md") and not name.startswith(".") and is_text(name)


def _reason(exc: Exception) -> str:
    if isinstance(exc, UnicodeDecodeError):
        return f"not UTF-8 at byte {exc.start}"
    if isinstance(exc, OSError):
        return exc.strerror or type(exc).__name__
    return str(exc)
