"""Names of models where there are several providers: ``provider:name``.

Owns what a name without a provider means, and the one form in which names are kept. Pure.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelNames:
    """``default``: whose a name without a provider is; ``plain``: whose models are kept by their names alone."""

    default: str
    providers: Collection[str]
    plain: str = "anthropic"

    def split(self, name: str) -> tuple[str, str]:
        """Return provider and the name by which that one knows the model. A prefix that is none belongs to the name."""
        provider, colon, bare = name.partition(":")
        return (provider, bare) if colon and provider in self.providers else (self.default, name)

    def keep(self, name: str) -> str:
        """Return the one form of a name: equal ones name the same model."""
        provider, bare = self.split(name)
        return bare if provider == self.plain else f"{provider}:{bare}"
