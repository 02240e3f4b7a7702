"""The process's settings: the only reader of the environment.

Owns names, defaults and units of everything an operator sets with ``AGENTIC_RAG_*`` variables or a
``.env`` file in the working folder. Domain settings (what an admin edits) live in ``domains``.
"""

import os
from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from agentic_rag.errors import BadConfiguration

_OURS = ("AGENTIC_RAG_", "ANTHROPIC_", "OPENAI_", "QDRANT_", "PG")
"""Beginnings of variables that no other program needs to know."""

REPOSITORY = Path(__file__).resolve().parent.parent
"""Where ``roles/`` and ``workspaces/`` lie."""


class Settings(BaseSettings):
    """What the operator decides. Secrets are masked in ``repr``."""

    model_config = SettingsConfigDict(env_prefix="AGENTIC_RAG_", env_file=".env", extra="ignore", frozen=True)

    data: Path = Path("data")
    """Everything the server ever writes lies here."""
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    allowed_hosts: str = ""
    """Host names, comma-separated, under which clients reach this server besides its addresses: a proxy's, mostly."""
    key: SecretStr | None = None
    """The API key with which the command line comes in."""
    requests_per_second: float = Field(50, gt=0)
    messages_per_minute: float = Field(60, gt=0)
    connections_per_key: int = Field(100, gt=0)
    """WebSockets and event streams together; beside them as many requests at once."""
    subscriptions_per_key: int = Field(1_000, gt=0)
    """Conversations followed over all sockets. These four limit each API key; a server without keys has none."""
    unauthenticated_connections: int = Field(512, gt=0)
    """Connections on which nobody has shown a key yet; one more and the one that has waited longest is refused."""
    allow_root: bool = False
    """Whether it may serve as root: a word for containers that hold nothing else."""
    quota_documents: int = Field(20_000, gt=0)
    quota_document_bytes: int = Field(20 * 1024**3, gt=0)
    """Of all documents' files of a domain."""
    quota_conversations: int = Field(100_000, gt=0)
    """These three bound each domain: an admin sees them with what is used at ``GET /api/domains/{id}/quotas``."""
    quota_memories: int = Field(100_000, gt=0)
    """Memories of one role and user; where a domain shares its memories, of one role."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    database_url: str = ""
    """Empty: SQLite in the data folder. Else ``postgresql://…``."""
    secret_key: SecretStr | None = None
    """32 bytes as base64 or hex, which seal the domains' secrets; after a comma, keys that only open older ones.
    Empty: a key of the server's own making in ``{data}/secret.key``."""
    mcp_hosts: str = ""
    """Hosts of MCP servers, ``host:port`` with commas between, that may be reached whatever their address, by http."""
    default_domain: str = "demo"
    """Where a conversation is begun that names no domain."""
    model: str = "claude-sonnet-5-5"
    model_profiles: Path | None = None
    """A TOML file that says what models take and have, over the built-in table and what their service says."""
    thinking: Literal["auto", "off", "adaptive"] = "auto"
    """Of domains that say nothing: ``auto``, or ``off`` for as little as the model allows (``adaptive``: an older
    name of ``auto``)."""
    citations: Literal["native", "marks"] = "native"
    anthropic_api_key: SecretStr | None = Field(
        None, validation_alias=AliasChoices("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "anthropic_api_key")
    )
    anthropic_base_url: str | None = Field(
        None, validation_alias=AliasChoices("ANTHROPIC_BASE_URL", "anthropic_base_url")
    )
    embedding: str = ""
    """``fastembed:<model>``, a model folder, ``http(s)://…/v1#model``, or ``none``; empty: the default model, which is
    fetched in the background where there is a network; until then no dense vectors."""
    fetch_model: Literal["auto", "never"] = "auto"
    """Whether the default embedding model is fetched by itself if it is not on this machine."""
    embedding_key: SecretStr | None = None
    """For an HTTP embeddings endpoint."""
    model_cache: Path = Path("~/.cache/fastembed")
    """Where embedding models lie that were fetched by name."""
    qdrant_url: str | None = Field(None, validation_alias=AliasChoices("QDRANT_URL", "qdrant_url"))
    """A Qdrant server to hold the index; empty: in a process of its own, in the data folder."""
    qdrant_api_key: SecretStr | None = Field(None, validation_alias=AliasChoices("QDRANT_API_KEY", "qdrant_api_key"))
    max_upload_bytes: int = 100 * 1024 * 1024
    disk_reserve: int = Field(256 * 1024 * 1024, ge=0)
    """Bytes of the disk that uploads leave free; half of it is left by what makes documents searchable."""
    model_idle_seconds: float = 60
    """A model that sends no byte of an answer for this long has failed. Pings count inside thinking and calls only."""
    retry_budget_seconds: float = 60
    """How long one step may spend on waiting for retries."""
    drain_seconds: float = 20
    """SIGTERM: how long running turns may go on."""
    run_log_hours: float = 24
    """How long the run log of a finished turn is kept."""

    @field_validator("mcp_hosts")
    @classmethod
    def _host_and_port(cls, text: str) -> str:
        for part in filter(None, (each.strip() for each in text.split(","))):
            host, _, port = part.rpartition(":")
            if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f"{part!r} is not host:port")
        return text

    @property
    def roles(self) -> Path:
        """The built-in roles."""
        return REPOSITORY / "roles"

    @property
    def templates(self) -> Path:
        """Workspace templates, copied into the data folder."""
        return REPOSITORY / "workspaces"

    @property
    def workspaces(self) -> Path:
        return self.data / "workspaces"

    @property
    def index(self) -> Path:
        return self.data / "index"

    @property
    def incoming(self) -> Path:
        """Where uploads grow, on the workspaces' disk."""
        return self.data / "incoming"


def client_environment() -> dict[str, str]:
    """Return the environment for package registries' clients: what they are set up by, and no key of ours."""
    return {name: text for name, text in os.environ.items() if not name.upper().startswith(_OURS)}


def load_settings(**given: object) -> Settings:
    """Read settings from arguments, the environment and ``.env``, in that order.

    Raises:
        BadConfiguration: names the variable and what would be right.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as exc:
        first = exc.errors()[0]
        name = str(first["loc"][0])
        variable = name if name.isupper() else f"AGENTIC_RAG_{name.upper()}"
        raise BadConfiguration(variable, first["msg"]) from exc
