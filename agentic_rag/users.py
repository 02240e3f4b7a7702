"""Who asks: a value that every business rule and every edge shares.

Owns nothing but the value; how a caller is recognised is ``server.auth``'s.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class User:
    """A caller. ``operator`` may do everything with domains; conversations are their owner's alone."""

    id: str
    operator: bool = False
