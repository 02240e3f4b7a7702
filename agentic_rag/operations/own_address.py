"""The address where browsers reach this server. Implements `agentic_rag.domains.sign_in_secrets.OwnAddress`.

The operator's public address comes first, then the local address if the server listens on this machine only.
"""

from dataclasses import dataclass
from pathlib import Path

from agentic_rag.operations.data_folder import find_server


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The candidates for the server's own address.

    ``public`` is the operator's setting or empty. ``local`` is the configured address, None if other machines reach it.
    """

    public: str
    local: str | None
    data: Path

    @property
    def url(self) -> str | None:
        """See `OwnAddress.url`.

        The address that a running server announced beats the settings, whose port may be any.
        """
        if self.public or self.local is None:
            return self.public or None
        return find_server(self.data) or self.local
