"""Apps of MCP servers (SEP-1865, extension ``io.modelcontextprotocol/ui``): pages that a tool's results are shown in.

A tool names a page by ``_meta.ui.resourceUri``; the server holds it as a ``ui://`` resource. This module reads the
tool's and the resource's metadata with bounds, and decides the policy under which a browser runs the page. Pure: it
knows neither connections nor the page that shows the frame.

A page is a stranger's program. It runs without an origin, without storage and without network: domains that a resource
declares in ``_meta.ui.csp`` are not opened, as the extension allows a host to be stricter.
"""

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final, Literal

from agentic_rag.base.json_form import Json
from agentic_rag.tools.errors import AppUnreadable

if TYPE_CHECKING:
    from mcp_types import Tool  # loading the library takes a second; routes need only the policy

Audience = Literal["model", "app"]
"""Who may call a tool: models, or apps of the tool's own server."""
APPS: Final = "io.modelcontextprotocol/ui"
"""Identifier of the extension."""
SCHEME: Final = "ui://"
MEDIA_TYPE: Final = "text/html;profile=mcp-app"
URI_CHARS: Final = 1_000
MOST_CHARS: Final = 4_000_000
"""Longest page of an app. The SDK's own examples with their libraries have up to 1.5 million characters."""

POLICY: Final = "; ".join(
    (
        "sandbox allow-scripts allow-forms",
        "default-src 'none'",
        "script-src 'unsafe-inline' 'unsafe-eval' blob:",
        "worker-src blob:",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "media-src data: blob:",
        "font-src data:",
        "connect-src 'none'",
        "frame-src 'none'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
    )
)
"""The ``Content-Security-Policy`` of an app's page: its own inline code, and nothing from any server."""
PERMISSIONS: Final = (
    "camera=(), microphone=(), geolocation=(), clipboard-read=(), clipboard-write=(), payment=(), usb=()"
)


def read_app_meta(tool: Json) -> Json:
    """Return ``_meta.ui`` of a tool as its server lists it, with the known members only; empty without an app."""
    meta = tool.get("_meta")
    ui = meta.get("ui") if isinstance(meta, dict) else None
    ui = ui if isinstance(ui, dict) else {}
    read: Json = {}
    older = meta.get("ui/resourceUri") if isinstance(meta, dict) else None
    uri = ui.get("resourceUri") or older
    if isinstance(uri, str) and uri.startswith(SCHEME) and len(uri) <= URI_CHARS and uri.isprintable():
        read["resourceUri"] = uri
    visibility = ui.get("visibility")
    if isinstance(visibility, list):
        read["visibility"] = [viewer for viewer in ("model", "app") if viewer in visibility]
    return read


def app_meta_of(tool: "Tool") -> Json:
    """Return the ``_meta.ui`` that `read_app_meta` kept for a tool; empty without one."""
    ui = (tool.meta or {}).get("ui")
    return ui if isinstance(ui, dict) else {}


def is_visible(meta: Json, audience: Audience) -> bool:
    """Return whether a server offers a tool to models, or to its own apps. By default it offers a tool to both."""
    return audience in meta.get("visibility", ("model", "app"))


def read_app_page(uri: str, answer: Json) -> str:
    """Return the HTML in a server's answer to ``resources/read``.

    Raises:
        AppUnreadable: the answer has no page of an app, or a page that is too long.
    """
    contents = answer.get("contents")
    page: Any = None
    for part in contents if isinstance(contents, list) else ():
        if isinstance(part, dict) and part.get("uri", uri) == uri:
            page = part
            break
    if page is None:
        raise AppUnreadable(uri, "the server's answer does not contain it")
    kind = str(page.get("mimeType") or "")[:100]
    if kind.replace(" ", "").lower() != MEDIA_TYPE:
        raise AppUnreadable(uri, f"its type is {kind!r}; {MEDIA_TYPE!r} is expected")
    html, blob = page.get("text"), page.get("blob")
    if isinstance(blob, str) and not isinstance(html, str):
        if len(blob) > MOST_CHARS * 2:
            raise AppUnreadable(uri, f"it is longer than {MOST_CHARS} characters")
        try:
            html = base64.b64decode(blob, validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError):
            raise AppUnreadable(uri, "its content is no base64 of UTF-8 text") from None
    if not isinstance(html, str) or not html.strip():
        raise AppUnreadable(uri, "it is empty")
    if len(html) > MOST_CHARS:
        raise AppUnreadable(uri, f"it is longer than {MOST_CHARS} characters")
    return html
