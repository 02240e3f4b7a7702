"""Names of MCP servers: which belong to us, in whatever dress, and what a pasted name becomes. Pure."""

import re
import unicodedata

RESERVED = frozenset({"promptx", "delegate", "retriever"})
"""Names of the system and built-in servers."""

MAX_NAME = 32

_LOOKALIKES = str.maketrans(
    {
        **dict(zip("аеорсхутрівѕԁԛһјӏкмпг", "aeopcxytpivsdqhjlkmnr", strict=True)),  # Cyrillic
        **dict(zip("αεορτχυικνγ", "aeoptxulkvy", strict=True)),  # Greek
        **dict(zip("ᴀᴄᴅᴇɢɪʟᴍɴᴏᴘʀᴛᴜᴠᴢɡıɩ", "acdeglmmnoprtuvzgll".replace("glm", "gil", 1), strict=True)),
        **dict(zip("0134579", "oleasgg".replace("sgg", "stg"), strict=True)),
        **dict.fromkeys("i1|", "l"),
    }
)
