"""The process's settings: the only reader of the environment.

Owns names, defaults and units of everything an operator sets with ``AGENTIC_RAG_*`` variables or a
``.env`` file in the working folder. Domain settings (what an admin edits) live in ``domains``.
"""

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from agentic_rag.errors import BadConfiguration

REPOSITORY = Path(__file__).resolve().parent.parent
"""Where ``roles/`` and ``workspaces/`` lie."""


class Settings(BaseSettings):
    """What the operator decides. Secrets are masked in ``repr``."""

    model_config = SettingsConfigDict(env_prefix="AGENTIC_RAG_", env_file=".env", extra="ignore", frozen=True)

    data: Path = Path("data")
    """Everything the server ever writes lies here."""
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    database_url: str = ""
    """Empty: SQLite in the data folder. Else ``postgresql://…``."""
    default_domain: str = "demo"
    model: str = "claude-sonnet-5-5"
    thinking: Literal["off", "adaptive"] = "off"
    citations: Literal["native", "marks"] = "native"
    anthropic_api_key: SecretStr | None = Field(
        None, validation_alias=AliasChoices("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "anthropic_api_key")
    )
    anthropic_base_url: str | None = Field(
        None, validation_alias=AliasChoices("ANTHROPIC_BASE_URL", "anthropic_base_url")
    )
    max_upload_bytes: int = 100 * 1024 * 1024
    model_idle_seconds: float = 60
    """A model that sends no event for this long has failed (pings do not count)."""
    retry_budget_seconds: float = 60
    """How long one step may spend on waiting for retries."""
    drain_seconds: float = 20
    """SIGTERM: how long running turns may go on."""
    run_log_hours: float = 24
    """How long the run log of a finished turn is kept."""

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
