"""Errors about unusable bundles of a domain, in the tree of ``errors``.

Owns their codes and texts. Its own module, since few modules know bundles.
"""

from agentic_rag.base.errors import AgenticRagError, Conflict, StorageFull
from agentic_rag.base.json_form import Json


class BundleRefused(AgenticRagError, code="BUNDLE_REFUSED", status=422, facts=("problem",)):
    """A bundle contains a member that is not allowed: a name, a link, a kind of member."""

    problem: str
    text = "This bundle cannot be used: {self.problem}."


class BundleDamaged(BundleRefused, code="BUNDLE_DAMAGED"):
    """A file is not a bundle of a domain, or is incomplete."""


class BundleTooLarge(BundleRefused, code="BUNDLE_TOO_LARGE", status=413):
    """A bundle, or its unpacked content, is larger than the limit."""


class BundleTooNew(AgenticRagError, code="BUNDLE_TOO_NEW", status=422, facts=("version",)):
    """A bundle has a format version that this program does not know."""

    version: str
    text = "This bundle has form {self.version}, and this program is older. Use a newer one to import it."


class BundleBindsSecrets(Conflict, code="BUNDLE_BINDS_SECRETS", facts=("servers",)):
    """An import would give a domain's existing secrets to new or changed servers.

    ``servers``: each server by name, with its address or command and the secrets it would get.
    """

    servers: tuple[Json, ...]

    def __str__(self) -> str:
        bindings = "; ".join(f"{one['server']} ({one['target']}) {', '.join(one['secrets'])}" for one in self.servers)
        names = ",".join(str(one["server"]) for one in self.servers)
        return f"The bundle gives secrets of this domain to other servers: {bindings}. If that is meant: bind={names}"


class BundleNotWritten(StorageFull, code="BUNDLE_NOT_WRITTEN", status=507):
    """For the command line: a bundle cannot be written to its destination; no part of it is left there."""

    place: str
    text = "The bundle {self.place} cannot be written: {self.reason}."
