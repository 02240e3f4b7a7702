"""Why a bundle of a domain cannot be used, in the tree of ``errors``.

Owns their codes and words. Its own module, since few parts know bundles.
"""

from agentic_rag.base.errors import AgenticRagError, Conflict, StorageFull
from agentic_rag.base.json_form import Json


class BundleRefused(AgenticRagError, code="BUNDLE_REFUSED", status=422, facts=("problem",)):
    """What a bundle holds may not be in one: a name, a link, a kind of member."""

    problem: str
    text = "This bundle cannot be used: {self.problem}."


class BundleDamaged(BundleRefused, code="BUNDLE_DAMAGED"):
    """A file is no bundle of a domain, or not a whole one."""


class BundleTooLarge(BundleRefused, code="BUNDLE_TOO_LARGE", status=413):
    """A bundle has, or would unpack to, more than is taken."""


class BundleTooNew(AgenticRagError, code="BUNDLE_TOO_NEW", status=422, facts=("version",)):
    """A bundle's form is of a version that this program does not know."""

    version: str
    text = "This bundle has form {self.version}, and this program is older. Use a newer one to import it."


class BundleBindsSecrets(Conflict, code="BUNDLE_BINDS_SECRETS", facts=("servers",)):
    """An import would give secrets that a domain has to servers that are new or changed. ``servers``: by name, where
    each leads and which secrets it would get.
    """

    servers: tuple[Json, ...]

    def __str__(self) -> str:
        each = "; ".join(f"{one['server']} ({one['target']}) {', '.join(one['secrets'])}" for one in self.servers)
        names = ",".join(str(one["server"]) for one in self.servers)
        return f"The bundle gives secrets of this domain to other servers: {each}. If that is meant: bind={names}"


class BundleNotWritten(StorageFull, code="BUNDLE_NOT_WRITTEN", status=507):
    """For the command line: a bundle cannot be written where it should lie; nothing is left there of it."""

    place: str
    text = "The bundle {self.place} cannot be written: {self.reason}."
