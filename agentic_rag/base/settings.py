"""The settings of the process. No other module reads the environment.

This module defines the name, default and unit of each value that an operator sets with an ``AGENTIC_RAG_*`` variable or
in a ``.env`` file in the working folder. The settings of a domain, which an admin edits, are in ``directory``.
"""

import ipaddress
import os
import re
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from agentic_rag.base.startup_errors import BadConfiguration

_OURS = ("AGENTIC_RAG_", "ANTHROPIC_", "OPENAI_", "AWS_", "GOOGLE_", "QDRANT_", "PG")
"""Beginnings of variables that no other program needs to know."""
_KEY = "_API_KEY"
"""The end of others: keys that the operator's file of providers names."""

_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?/?")
"""An origin as browsers send it, or with a slash at its end; neither ``null`` nor a pattern."""
_ROOT_PATH = re.compile(r"(/(?!\.\.?(/|$))[A-Za-z0-9._~-]+)+")
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+")
_CENTURY_HOURS = 876_000
"""The longest duration in hours. A date further away than that cannot be represented."""

_LOOPBACK = re.compile(r"http://(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d{1,5})?(/|$)")
"""A server on this machine, which needs no https."""

REPOSITORY = Path(__file__).resolve().parents[2]
"""Where ``roles/`` and ``workspaces/`` lie in a checkout. In an installed wheel they are inside the packages."""


class Settings(BaseSettings):
    """What the operator decides. Secrets are masked in ``repr``."""

    model_config = SettingsConfigDict(
        env_prefix="AGENTIC_RAG_", env_file=".env", extra="ignore", frozen=True, allow_inf_nan=False
    )

    data: Path = Path("data")
    """Everything the server ever writes lies here. Several servers of one PostgreSQL database share it."""
    local: Path | None = None
    """With PostgreSQL: this server's own folder on a local disk. It holds the files that servers do not share in
    ``AGENTIC_RAG_DATA``: lock and address, the embedded index, home folders of child processes. Empty: this server is
    the only user of the data folder."""
    host: str = "127.0.0.1"
    """The address to listen on. Any but loopback needs a key: ``agentic-rag keys create``."""
    port: int = Field(8000, ge=0, le=65535)
    """The port to listen on; 0 takes a free one."""
    workers: int = Field(1, ge=1, le=64)
    """With PostgreSQL and a Qdrant server: how many processes ``agentic-rag serve`` begins, which are one server behind
    one port."""
    public_url: str = ""
    """The address under which browsers reach this server, ``https://rag.example``: sign-ins come back there. Empty: its
    address on this machine, if it listens there alone."""
    root_path: str = ""
    """The path below which browsers reach this server on a shared host, ``/rag``. The page, REST, sockets and sign-ins
    then live below it. Empty: the server has the host to itself."""
    allowed_hosts: str = ""
    """Host names, comma-separated, under which clients reach this server besides its addresses: a proxy's, mostly."""
    trusted_proxies: str = "127.0.0.1, ::1"
    """Addresses and networks, comma-separated (``10.0.0.0/8``), of proxies whose ``X-Forwarded-For`` and
    ``X-Forwarded-Proto`` the server trusts for the client's address and for https. Empty: trust no proxy."""
    allowed_origins: str = ""
    """Origins, comma-separated (``https://app.example, http://localhost:5173``), whose pages may use this server from a
    browser; empty: only its own."""
    sign_in_minutes: float = Field(30, gt=0, le=60 * _CENTURY_HOURS)
    """How long a browser stays signed in without renewing it."""
    sign_in_hours: float = Field(12, gt=0, le=_CENTURY_HOURS)
    """How long a browser stays signed in, however often it is renewed."""
    oidc_issuer: str = ""
    """An OpenID provider at which people sign in (``https://login.example/realms/acme``); empty: there is none."""
    oidc_client_id: str = ""
    """What this server is called at the OpenID provider."""
    oidc_client_secret: SecretStr | None = None
    """Its secret there; empty for a public client."""
    oidc_scopes: str = "openid profile email"
    """What is asked of the OpenID provider; some give groups for ``groups`` only."""
    oidc_grants: Path | None = None
    """A TOML file that says what groups of the OpenID provider may do; ``docs/clients/authentication.md`` shows it."""
    oidc_groups_claim: str = "groups"
    """The claim that lists a person's groups. Dots lead into nested objects (``realm_access.roles``)."""
    oidc_name_claim: str = "preferred_username"
    """The claim with the name that a user gets here at the first sign-in."""
    oidc_audience: str = ""
    """For what audience a token is that a client of the API shows; empty: the client id."""
    oidc_clients: str = ""
    """Other clients at the OpenID provider, comma-separated, whose tokens the API takes (``azp``)."""
    mcp_sign_in: Literal["own", "provider", "off"] = "own"
    """The issuer of OAuth tokens for the MCP door: this server (``own``), the OpenID provider (``provider``; the
    audience of its tokens must be the door's address), or none (``off``). The door accepts API keys in any case."""
    mcp_registration: bool = False
    """Whether programs may register themselves at this server (RFC 7591) to sign in at the MCP door. Programs with a
    client ID metadata document need no registration."""
    key: SecretStr | None = None
    """The API key with which the command line comes in."""
    requests_per_second: float = Field(50, gt=0)
    """Requests and frames per second of one API key. A server without keys has no limit."""
    messages_per_minute: float = Field(60, gt=0)
    """Messages of one API key."""
    connections_per_key: int = Field(100, gt=0)
    """WebSockets and event streams of one API key together; beside them as many requests at once."""
    subscriptions_per_key: int = Field(1_000, gt=0)
    """Conversations that one API key follows over all its sockets."""
    unauthenticated_connections: int = Field(512, gt=0)
    """Open connections without a valid key yet. Above this number, the server refuses the oldest of them."""
    allow_root: bool = False
    """Accepted and ignored: a server may always run as root, and warns about it."""
    quota_documents: int = Field(20_000, gt=0)
    """Documents of one domain. Its admins see all quotas and their use at ``GET /api/domains/{id}/quotas``."""
    quota_document_bytes: int = Field(20 * 1024**3, gt=0)
    """Bytes of all documents' files of one domain."""
    quota_conversations: int = Field(100_000, gt=0)
    """Conversations in one domain."""
    quota_memories: int = Field(100_000, gt=0)
    """Memories of one role and user; where a domain shares its memories, of one role."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """From which weight on the server's log has a line."""
    log_format: Literal["text", "json"] = "text"
    """How a line of the server's log is written: for people, or as a JSON object. Both name request, turn and trace."""
    metrics: Literal["on", "off"] = "on"
    """Whether the server counts its work and shows it to operators at ``/metrics``, as Prometheus reads it."""
    otlp_endpoint: str = ""
    """Where traces are sent by OTLP over HTTP: ``http://collector:4318``; empty: there are none. It needs the extra
    ``otel``; what headers go along, ``OTEL_EXPORTER_OTLP_HEADERS`` says."""
    trace_content: bool = False
    """Whether traces include contents: prompts, answers, arguments and results, without the domains' secrets."""
    database_url: str = ""
    """Empty: SQLite in the data folder. Else ``postgresql://…``."""
    redis_url: str = ""
    """With PostgreSQL: a Valkey or Redis (``redis://…``, ``valkey://…``) that carries live events between servers of
    one database; empty: PostgreSQL does. It keeps nothing that counts. Needs the extra ``redis``."""
    replica: str = ""
    """With PostgreSQL: this server's name among the servers of one database. Empty: a generated name."""
    max_turns: int = Field(0, ge=0)
    """With PostgreSQL: how many turns run in this server at once, in all its workers, before others of the database
    take them; 0: any number."""
    secret_key: SecretStr | None = None
    """32 bytes as base64 or hex, which seal the domains' secrets; after a comma, keys that only open older ones.
    Empty: a key of the server's own making in ``{data}/secret.key``."""
    mcp_hosts: str = ""
    """Hosts of MCP servers and of their sign-ins, ``host:port`` or ``host:*`` with commas between, that may be reached
    whatever their address, by http, also through a proxy (``HTTP_PROXY``, ``HTTPS_PROXY``, ``NO_PROXY``)."""
    source_folders: str = ""
    """Folders that domain admins may use as document sources: absolute paths, comma-separated. ``{domain}`` stands for
    the id of the domain (``/srv/share/{domain}``), so that each domain has its own. Empty: none."""
    smtp_url: SecretStr | None = None
    """An SMTP relay for notifications by mail, ``smtp://user:password@host:587`` or ``smtps://…``; empty: no mail."""
    mail_from: str = ""
    """The sender of mails, as the relay accepts it: ``agentic-rag@example.org``."""
    ws_dialect: str = "native"
    """What a client of ``/ws`` is spoken to in that asks for no dialect."""
    default_domain: str = "demo"
    """Where a conversation is begun that names no domain."""
    model: str = "claude-sonnet-5-5"
    """The model of domains that name none, with or without its provider (``anthropic:claude-sonnet-5-5``)."""
    providers: Path | None = None
    """A TOML file with model providers that the domains may choose among; ``docs/providers.md`` has the form."""
    model_profiles: Path | None = None
    """A TOML file that says what models take and have, over the built-in table and what their service says."""
    prices: Path | None = None
    """A JSON file that says what models cost, for reports and budgets in money; ``docs/usage.md`` has the form."""
    thinking: Literal["auto", "off", "adaptive"] = "auto"
    """Of domains that say nothing: ``auto``, or ``off`` for as little as the model allows (``adaptive``: an older
    name of ``auto``)."""
    titles: Literal["model", "message"] = "model"
    """Where the titles of conversations come from: of the first message at once and of the model after the first turn,
    which costs one small call a conversation; or of the first ``message`` alone."""
    share_links: Literal["off", "users", "anyone"] = "off"
    """Who may read conversations that their owners share by a link: nobody, people who are signed in, or ``anyone`` who
    has the link. Quoted passages are shown only to people who see the domain."""
    citations: Literal["native", "marks"] = "native"
    """How a model cites: by its service's own citations, or by marks in its text for services that have none."""
    anthropic_api_key: SecretStr | None = Field(
        None, validation_alias=AliasChoices("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "anthropic_api_key")
    )
    """The key of the model's service; empty: the embedded extractive model answers."""
    anthropic_base_url: str | None = Field(
        None, validation_alias=AliasChoices("ANTHROPIC_BASE_URL", "anthropic_base_url")
    )
    """Where the model's service is, if it is not Anthropic's own."""
    openai_api_key: SecretStr | None = Field(None, validation_alias=AliasChoices("OPENAI_API_KEY", "openai_api_key"))
    """The key of OpenAI's service, or of the endpoint at `openai_base_url`."""
    openai_base_url: str | None = Field(None, validation_alias=AliasChoices("OPENAI_BASE_URL", "openai_base_url"))
    """With ``AGENTIC_RAG_MODEL=openai:NAME``: OpenAI, or any endpoint that speaks chat completions."""
    embedding: str = ""
    """``wheel``, ``fastembed:<model>``, a model folder, ``http(s)://…/v1#model``, or ``none``. Empty: the default
    model, which is fetched in the background where there is a network, and until then ``wheel``, which is installed
    with the server."""
    fetch_model: Literal["auto", "never"] = "auto"
    """Whether the default embedding model is fetched by itself if it is not on this machine."""
    embedding_key: SecretStr | None = None
    """For an HTTP embeddings endpoint."""
    model_cache: Path = Path("~/.cache/fastembed")
    """Where embedding models lie that were fetched by name."""
    qdrant_url: str | None = Field(None, validation_alias=AliasChoices("QDRANT_URL", "qdrant_url"))
    """A Qdrant server that holds the index. Empty: an embedded index in the data folder, in a separate process."""
    qdrant_api_key: SecretStr | None = Field(None, validation_alias=AliasChoices("QDRANT_API_KEY", "qdrant_api_key"))
    """The key of the Qdrant server."""
    max_upload_bytes: int = Field(100 * 1024 * 1024, gt=0)
    """Bytes of one uploaded file."""
    ocr_pages: int = Field(200, ge=0)
    """Scanned pages of one document that OCR reads, with the extra ``ocr``; 0: none."""
    ocr_seconds: float = Field(20, gt=0)
    """Seconds of the processor that OCR may take for one page."""
    disk_reserve: int = Field(256 * 1024 * 1024, ge=0)
    """Bytes of the disk that uploads leave free; half of it is left by what makes documents searchable."""
    model_idle_seconds: float = Field(60, gt=0)
    """A model that sends no byte of an answer for this long has failed. Pings count inside thinking and calls only."""
    retry_budget_seconds: float = Field(60, ge=0)
    """How long one step may spend on waiting for retries."""
    wait_hours: float = Field(24, gt=0, le=_CENTURY_HOURS)
    """How long a turn waits for a person: an approval, a form, a sign-in, a question. Then it counts as declined."""
    drain_seconds: float = Field(20, ge=0, le=86_400)
    """SIGTERM: how long running turns may go on."""
    transcript_bytes: int = Field(256 * 1024 * 1024, ge=0)
    """Bytes of memory for the transcripts of idle conversations, so that their next turn starts without reading the
    store. The least recently used are dropped first. Workers divide this number among them."""
    run_log_hours: float = Field(24, ge=0, le=_CENTURY_HOURS)
    """How long the run log of a finished turn is kept."""

    backup_every: float = Field(0, ge=0)
    """Hours between two backups that the server writes by itself into ``{data}/backups``; 0: none. Copy them elsewhere:
    a disk that is lost takes those on it along."""
    backup_keep: int = Field(7, gt=0)
    """How many of those stay."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments, the environment and ``.env``.

        Leave out the environment or ``.env`` if it has none of our names: pydantic searches it for each field, which
        takes 20 ms.
        """
        aliases = {
            str(name).lower()
            for field in cls.model_fields.values()
            if isinstance(field.validation_alias, AliasChoices)
            for name in field.validation_alias.choices
        }
        prefix = cls.model_config["env_prefix"].lower()
        sources = [
            source
            for source in (env_settings, dotenv_settings)
            if not isinstance(source, EnvSettingsSource)
            or any(name.lower().startswith(prefix) or name.lower() in aliases for name in source.env_vars)
        ]
        return init_settings, *sources

    @field_validator("*", mode="before")
    @classmethod
    def _ignore_empty(cls, value: object, info: ValidationInfo) -> object:
        """Take the default for an empty value, as compose files and unit files set it for an unset variable."""
        name = info.field_name or ""
        if isinstance(value, str) and not value.strip() and name != "trusted_proxies":
            return cls.model_fields[name].get_default()
        return value

    @field_validator("mcp_hosts")
    @classmethod
    def _host_and_port(cls, text: str) -> str:
        for part in filter(None, (entry.strip() for entry in text.split(","))):
            host, _, port = part.rpartition(":")
            numbered = port.isascii() and port.isdigit() and 0 < int(port) < 65536
            if not host or not (numbered or port == "*"):
                raise ValueError(f"{part!r} is neither host:port nor host:*")
        return text

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_collector(cls, text: str) -> str:
        if text and not is_url(text):
            raise ValueError(f"{text!r}: an http:// or https:// address of a collector is expected")
        return text.rstrip("/")

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, text: str) -> str:
        for part in filter(None, (entry.strip() for entry in text.split(","))):
            try:
                ipaddress.ip_network(part)
            except ValueError:
                problem = f"{part!r} is neither an address nor a network: 10.0.0.7 or 10.0.0.0/8 is expected"
                raise ValueError(problem) from None
        return text

    @field_validator("public_url")
    @classmethod
    def _is_origin(cls, text: str) -> str:
        if text and (not _ORIGIN.fullmatch(text) or not text.startswith(("https://", "http://"))):
            raise ValueError(f"{text!r} is no address of a server: https://host is expected, without a path")
        return text.rstrip("/")

    @field_validator("root_path")
    @classmethod
    def _is_path(cls, text: str) -> str:
        text = text.rstrip("/")
        if text and not _ROOT_PATH.fullmatch(text):
            raise ValueError(
                f"{text!r} is not a path: /rag or /tools/rag is expected (letters, digits, '.', '_', '~', '-')"
            )
        return text

    @field_validator("allowed_hosts")
    @classmethod
    def _are_hosts(cls, text: str) -> str:
        for part in filter(None, (entry.strip() for entry in text.split(","))):
            if not _HOST_NAME.fullmatch(part) and not _is_address(part):
                raise ValueError(f"{part!r} is no host name: rag.example is expected, without a scheme and a port")
        return text

    @field_validator("source_folders")
    @classmethod
    def _are_absolute(cls, text: str) -> str:
        for part in filter(None, (entry.strip() for entry in text.split(","))):
            if not part.startswith("/") or ".." in part.split("/"):
                raise ValueError(f"{part!r} is not an absolute path without '..'")
        return text

    @field_validator("allowed_origins")
    @classmethod
    def _are_origins(cls, text: str) -> str:
        for part in filter(None, (entry.strip() for entry in text.split(","))):
            if not _ORIGIN.fullmatch(part):
                raise ValueError(f"{part!r} is no origin: scheme://host or scheme://host:port is expected")
        return text

    @field_validator("oidc_issuer")
    @classmethod
    def _is_issuer(cls, text: str) -> str:
        if (text and not (text.startswith("https://") or _LOOPBACK.match(text))) or any(
            character in text for character in "?# "
        ):
            raise ValueError(f"{text!r}: an https:// address without a query is expected")
        return text

    @property
    def public_address(self) -> str:
        """``public_url`` with the root path, or empty if no public address is set."""
        return self.public_url + self.root_path if self.public_url else ""

    @property
    def roles(self) -> Path:
        """The built-in roles."""
        installed = REPOSITORY / "mcp_servers" / "promptx" / "builtin_roles"
        return installed if installed.is_dir() else REPOSITORY / "roles"

    @property
    def templates(self) -> Path:
        """Workspace templates, copied into the data folder."""
        installed = REPOSITORY / "agentic_rag" / "workspaces"
        return installed if installed.is_dir() else REPOSITORY / "workspaces"

    @property
    def workspaces(self) -> Path:
        return self.data / "workspaces"

    @property
    def database(self) -> str | Path:
        """The address of the PostgreSQL database, or the path of the SQLite file."""
        return self.database_url or self.data / "agentic-rag.db"

    @property
    def own(self) -> Path:
        """The folder that no other server uses."""
        return self.local or self.data

    @property
    def index(self) -> Path:
        return self.own / "index"


def is_url(text: str) -> bool:
    """Return whether a text is an http or https address with a host, and with a valid port if it has one."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def environment_value(name: str) -> str:
    """Return a variable that the operator's file names, empty if it is not set; ``.env`` is not looked into."""
    text = os.environ.get(name, "")
    return text.strip()


def own_environment(settings: Settings) -> dict[str, str]:
    """Return the environment for a process of ours that works on the same data."""
    names = {"AGENTIC_RAG_DATA": str(settings.data), "AGENTIC_RAG_DATABASE_URL": settings.database_url}
    return {**os.environ, **names, **({"AGENTIC_RAG_LOCAL": str(settings.local)} if settings.local else {})}


def client_environment() -> dict[str, str]:
    """Return the environment for package registries' clients: what they are set up by, and no key of ours."""
    return {
        name: text
        for name, text in os.environ.items()
        if not name.upper().startswith(_OURS) and not name.upper().endswith(_KEY)
    }


def load_settings(**arguments: object) -> Settings:
    """Read settings from arguments, the environment and ``.env``, in that order.

    Raises:
        BadConfiguration: names the variable and what would be right.
    """
    try:
        return Settings(**{name: value for name, value in arguments.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as exc:
        first = exc.errors()[0]
        name = str(first["loc"][0])
        variable = name if name.isupper() else f"AGENTIC_RAG_{name.upper()}"
        if first["type"] == "value_error":  # of our validators, which quote the value
            problem = str(first["ctx"]["error"])
        else:
            problem = f"{str(first['input'])[:200]!r} is not possible: {first['msg'].lower()}"
        raise BadConfiguration(variable, problem) from exc
