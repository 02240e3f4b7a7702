"""Routes for the files of the console. They are public, because they contain none of this server's data.

This module answers with a file, or with 304 if the browser has it. ``web_files`` finds the files.
"""

import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agentic_rag.server.compression import accepts_gzip
from agentic_rag.server.routes import route
from agentic_rag.server.web_files import INDEX, REFERENCE, WebFile, WebFiles

FOLDER = "/web/"


class PageAnswer(Response):
    """A file of the page, or 304 if the browser already has it."""


class WebRoutes:
    """The console of this server."""

    def __init__(self, files: WebFiles | None = None) -> None:
        self._files = files or WebFiles()

    @route("GET", "/", allow="anyone")
    async def page(self, request: Request) -> PageAnswer:
        """Show the console."""
        return await self._answer(request, INDEX)

    @route("GET", "/api/docs", allow="anyone")
    async def docs(self, request: Request) -> PageAnswer:
        """Show the documentation of all routes as a page, which reads the OpenAPI document."""
        return await self._answer(request, REFERENCE)

    @route("GET", f"{FOLDER}{{path:path}}", allow="anyone")
    async def file(self, request: Request, path: str) -> PageAnswer:
        """Send a file of the console."""
        return await self._answer(request, path)

    async def _answer(self, request: Request, path: str) -> PageAnswer:
        found: WebFile | None = await anyio.to_thread.run_sync(self._files.find, path)
        if found is None:
            raise HTTPException(404, f"There is no {request.url.path!r}.")
        packed = found.packed if accepts_gzip(request.headers) else None
        tag = found.tag if packed is None else f'{found.tag[:-1]}-gzip"'
        headers = {**found.headers, "etag": tag, "vary": "accept-encoding"}
        given = {each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")}
        if tag in given:
            return PageAnswer(status_code=304, headers=headers)
        if packed is not None:
            headers["content-encoding"] = "gzip"
        return PageAnswer(found.data if packed is None else packed, media_type=found.media_type, headers=headers)
