"""Create the sign-ins at users' servers on first use, because their modules import the MCP library."""

import importlib
from typing import TYPE_CHECKING

import anyio.to_thread

from agentic_rag.domains.sign_in_secrets import OwnAddress, SignInListener
from agentic_rag.domains.vault import Vault
from agentic_rag.store.database import Database
from agentic_rag.tools.launch.policy import LaunchPolicy

if TYPE_CHECKING:
    from agentic_rag.domains.sign_ins import SignIns


class SignInSource:
    """Provides the one `SignIns` of the process."""

    def __init__(
        self, database: Database, vault: Vault, policy: LaunchPolicy, address: OwnAddress, listener: SignInListener
    ) -> None:
        """Store the collaborators.

        The sign-ins follow the policy's network rules. ``address`` is the address to which browsers return from a
        sign-in. ``listener`` is notified of each completed sign-in.
        """
        self._database = database
        self._vault = vault
        self._policy = policy
        self._address = address
        self._listener = listener
        self._sign_ins: SignIns | None = None

    async def sign_ins(self) -> "SignIns":
        """Return the sign-ins. The first call imports their module in a thread."""
        if self._sign_ins is None:
            await anyio.to_thread.run_sync(importlib.import_module, "agentic_rag.domains.sign_ins")
        if self._sign_ins is None:  # another call may have created them during the import
            from agentic_rag.domains.sign_ins import SignIns

            self._sign_ins = SignIns(self._database, self._vault, self._policy, self._address, self._listener)
        return self._sign_ins
