"""Protocol to get the sign-ins without importing their dependencies."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agentic_rag.domains.sign_ins import SignIns


class SignInSource(Protocol):
    """Provides the sign-ins once their dependencies are loaded."""

    async def sign_ins(self) -> "SignIns":
        """Return the sign-ins."""
        ...
