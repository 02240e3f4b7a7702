"""Model names with a provider prefix: ``provider:name``.

Owns the default provider of names without a prefix, and the stored form of names. Pure.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelNames:
    """Rules for model names.

    ``default``: the provider of names without a prefix. ``plain``: the provider whose names are stored without one.
    """

    default: str
    providers: Collection[str]
    plain: str = "anthropic"

    def split(self, name: str) -> tuple[str, str]:
        """Return the provider and the model's name there. A prefix that is not a provider belongs to the name."""
        provider, colon, bare = name.partition(":")
        return (provider, bare) if colon and provider in self.providers else (self.default, name)

    def keep(self, name: str) -> str:
        """Return the stored form of a name. Equal stored forms name the same model."""
        provider, bare = self.split(name)
        return bare if provider == self.plain else f"{provider}:{bare}"
