"""REST routes for bundles: a domain exported to one file, and imported from it.

This module defines the forms and answers, and sends a bundle as a stream. ``bundles`` decides the rules.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing

from pydantic import Field
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from agentic_rag.access.users import User
from agentic_rag.base.bundle_errors import BundleBindsSecrets, BundleRefused, BundleTooLarge, BundleTooNew
from agentic_rag.base.errors import (
    BodyTooLarge,
    DocumentTooLarge,
    InvalidInput,
    QuotaExceeded,
    SecretLimit,
    ServerReserved,
    VersionConflict,
)
from agentic_rag.base.forms import Form
from agentic_rag.base.silence_timers import SilenceScope
from agentic_rag.bundles.exporting import Exports, OpenBundle
from agentic_rag.bundles.importing import ImportOptions, Imports
from agentic_rag.bundles.report import ImportReport
from agentic_rag.server.replies import SANDBOX, Redacted
from agentic_rag.server.routes.originals import SEND_SECONDS, disposition
from agentic_rag.server.routes.uploads import MULTIPART_BYTES, FilePart, read_files
from agentic_rag.server.routing import check_announced, route

DOMAIN_BUNDLE = "/api/domains/{domain}/bundle"
IMPORT_ERRORS = (
    BundleRefused,
    BundleTooLarge,
    BundleTooNew,
    DocumentTooLarge,
    QuotaExceeded,
    SecretLimit,
    ServerReserved,
)
"""Reasons to refuse a bundle."""


class BundleExportQuery(Form):
    """Options of an export.

    ``memories``: include the domain's shared memories, or the caller's own if each user has their own.
    """

    memories: bool = False


class NewDomainQuery(Form):
    """Options of an import into a new domain.

    ``dry_run``: only report what would be created. ``name`` is the new domain's name, by default the bundle's.
    """

    dry_run: bool = False
    name: str | None = Field(None, max_length=1_000)


class OverQuery(Form):
    """Options of an import into an existing domain.

    ``dry_run``: only report what would change. ``remove_others``: remove items that the bundle does not have. ``bind``:
    comma-separated names of servers that may get this domain's secrets.
    """

    dry_run: bool = False
    remove_others: bool = False
    bind: str = Field("", max_length=10_000)


class BundleStream:
    """The ASGI answer that sends a bundle. If a file changes meanwhile, the answer ends before its announced length."""

    def __init__(self, bundle: OpenBundle) -> None:
        self._bundle = bundle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"application/zip"),
            (b"content-length", str(self._bundle.contents.size).encode()),
            (b"content-disposition", disposition(self._bundle.name).encode()),
            (b"content-security-policy", SANDBOX.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"x-left-out", str(len(self._bundle.contents.left_out)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sent = 0
        async with aclosing(self._bundle.pieces()) as pieces:
            async for piece in pieces:
                with SilenceScope(SEND_SECONDS) as sending:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                if sending.expired:
                    return
                sent += len(piece)
        if sent == self._bundle.contents.size:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class BundleRoutes:
    """Bundles of domains."""

    def __init__(self, exports: Exports, imports: Imports) -> None:
        self._exports = exports
        self._imports = imports

    @route("GET", DOMAIN_BUNDLE, allow="admin", audited=True)
    async def export(self, user: User, domain: str, query: BundleExportQuery) -> BundleStream:
        """Export a domain as a bundle.

        It contains settings, prompts, roles, skills, servers and documents, but no values of secrets.
        """
        return BundleStream(await self._exports.prepare(user, domain, memories=query.memories))

    @route("POST", "/api/bundles", allow="operator", status=201, takes="application/zip", errors=IMPORT_ERRORS)
    async def make(self, request: Request, user: User, query: NewDomainQuery) -> ImportReport:
        """Create a domain from a bundle. The bundle is the body, or the one file of a multipart body."""
        _check_announced_size(request, self._imports.max_bytes)
        choice = ImportOptions(dry_run=query.dry_run, name=query.name)
        return await self._imports.create(user, _pieces_of(request), choice)

    @route(
        "POST",
        DOMAIN_BUNDLE,
        allow="admin",
        takes="application/zip",
        errors=(*IMPORT_ERRORS, BundleBindsSecrets, VersionConflict),
    )
    async def over(self, request: Request, user: User, domain: str, query: OverQuery) -> Redacted[ImportReport]:
        """Import a bundle into a domain, whose conversations and name stay. Use the dry run first."""
        _check_announced_size(request, self._imports.max_bytes)
        bind = frozenset(name.strip() for name in query.bind.split(",") if name.strip())
        choice = ImportOptions(dry_run=query.dry_run, remove_others=query.remove_others, bind=bind)
        return Redacted(domain, await self._imports.update(user, domain, _pieces_of(request), choice))


def _check_announced_size(request: Request, limit: int) -> None:
    """Refuse a bundle whose announced size is too large, before reading any of it.

    Raises:
        BundleTooLarge: ``Content-Length`` is more than ``limit`` plus the overhead of a multipart body.
    """
    try:
        check_announced(request, limit + MULTIPART_BYTES)
    except BodyTooLarge as exc:
        raise BundleTooLarge(f"it has more than {limit} bytes") from exc


async def _pieces_of(request: Request) -> AsyncIterator[bytes]:
    """Yield the bytes of a bundle: of the body, or of the file in a multipart body.

    Raises:
        InvalidInput: the multipart body does not contain exactly one file.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        async for piece in request.stream():
            yield piece
        return
    files = 0
    async with aclosing(read_files(request)) as parts:
        async for part in parts:
            if isinstance(part, FilePart):
                files += 1
            elif part is not None and files == 1:  # bytes of a second file are no part of the bundle
                yield part
    if files != 1:
        raise InvalidInput("body", "one file is expected: the bundle.")
