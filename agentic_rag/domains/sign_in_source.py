"""Where the sign-ins are, for who must not load what they need. Owns nothing."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agentic_rag.domains.sign_ins import SignIns


class SignInSource(Protocol):
    """Has the sign-ins, once what they need is loaded."""

    async def sign_ins(self) -> "SignIns":
        """Return them."""
        ...
