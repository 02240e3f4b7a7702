"""Where browsers reach this server: implements `agentic_rag.domains.sign_in_secrets.OwnAddress`.

Owns the order: what the operator says, else the address on this machine, for a server that listens there alone.
"""

from dataclasses import dataclass
from pathlib import Path

from agentic_rag.operations.data_folder import find_server


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """``public``: what the operator says, or nothing; ``local``: the settings' own address, None if others reach it."""

    public: str
    local: str | None
    data: Path

    @property
    def url(self) -> str | None:
        """See `OwnAddress.url`. What a running server announced counts more than the settings: its port may be any."""
        if self.public or self.local is None:
            return self.public or None
        return find_server(self.data) or self.local
