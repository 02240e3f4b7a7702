"""Names of MCP servers: detects imitations of our own names, and normalizes pasted names. Pure."""

import re
import unicodedata

from anyascii import anyascii

from agentic_rag.tools.system import SERVERS

RESERVED = SERVERS
"""Names of the system and built-in servers."""

MAX_NAME = 32
READ_CHARS = 512
"""Maximum number of characters read of a name; normalizing takes long for a longer text."""

_PAIRS = (
    "аa еe оo рp сc хx тt уy іl ѕs ԁd ԛq һh јj ӏl кk мm пn гr ԍg ѵv ґr "  # Cyrillic
    "αa εe οo ρp τt χx υu ιl κk νv γy "  # Greek
    "ᴀa ᴄc ᴅd ᴇe ɢg ɪl ʟl ᴍm ɴn ᴏo ᴘp ʀr ᴛt ᴜu ᴠv ɡg ıl ɩl ǀl "  # small capitals, variants
    "0o 1l 3e 4a 7t |l il"
)
_LOOKALIKES = str.maketrans({pair[0]: pair[1] for pair in _PAIRS.split()})
"""Characters that print like a Latin letter. ``i``, ``l``, ``1`` and ``|`` become one."""


def skeleton(name: str) -> str:
    """Return the letters and digits of a name, with one character in place of all that look alike."""
    text = unicodedata.normalize("NFKC", name[:READ_CHARS]).casefold()
    text = unicodedata.normalize("NFKD", text).casefold().translate(_LOOKALIKES)
    return "".join(char for char in text if char.isalnum())  # no mark, space, hyphen, dot or invisible character


_RESERVED = frozenset(map(skeleton, RESERVED))


def is_reserved(name: str) -> bool:
    """Return whether a name is one of ours or only looks like it."""
    return skeleton(name) in _RESERVED


def fit_name(name: str) -> str:
    """Return the name under which an entry is stored: ``[A-Za-z0-9_-]{1,32}``; empty if nothing remains.

    Of a path or a package name (``github.com/…/github``, ``@scope/files``) the last part counts. Other scripts are
    transliterated: ``高德地图`` is ``GaoDeDeTu``. Only the last `READ_CHARS` characters are read.
    """
    text = unicodedata.normalize("NFKC", name.rstrip()[-READ_CHARS:]).strip().rstrip("/").rpartition("/")[2]
    if not text.isascii():
        text = anyascii(text[:200])
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).lstrip("-")[:MAX_NAME].strip("-")
