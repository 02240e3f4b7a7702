"""Routes for the files of the console. They are public, because they contain none of this server's data.

This module answers with a file, or with 304 if the browser has it. ``web_files`` finds the files.
"""

import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agentic_rag.server.routes import route
from agentic_rag.server.web_files import HEADERS, INDEX, WebFile, WebFiles

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

    @route("GET", f"{FOLDER}{{path:path}}", allow="anyone")
    async def file(self, request: Request, path: str) -> PageAnswer:
        """Send a file of the console."""
        return await self._answer(request, path)

    async def _answer(self, request: Request, path: str) -> PageAnswer:
        found: WebFile | None = await anyio.to_thread.run_sync(self._files.find, path)
        if found is None:
            raise HTTPException(404, f"There is no {request.url.path!r}.")
        headers = {**HEADERS, "etag": found.tag}
        given = {each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")}
        if found.tag in given:
            return PageAnswer(status_code=304, headers=headers)
        return PageAnswer(found.data, media_type=found.media_type, headers=headers)
