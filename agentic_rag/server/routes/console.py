"""Routes for the files of the console. They are public, because they contain none of this server's data.

This module answers with a file, or with 304 if the browser has it. ``web_files`` finds the files.
"""

from functools import partial

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agentic_rag.server.compression import accepts_gzip
from agentic_rag.server.routing import route
from agentic_rag.server.web_files import LANGUAGES, REFERENCE, THEMES, WebFile, WebFiles

FOLDER = "/web/"
LANGUAGE_COOKIE = "agentic-rag.language"
THEME_COOKIE = "agentic-rag.theme"
"""The choices of a browser's reader, which the page stores."""


class PageAnswer(Response):
    """A file of the page, or 304 if the browser already has it."""


class WebRoutes:
    """The console of this server."""

    def __init__(self, files: WebFiles | None = None) -> None:
        self._files = files or WebFiles()

    @route("GET", "/", allow="anyone")
    async def page(self, request: Request) -> PageAnswer:
        """Show the console."""
        cookies = request.cookies
        theme = cookies.get(THEME_COOKIE, "")
        language = cookies.get(LANGUAGE_COOKIE, "")
        if language not in LANGUAGES:
            language = preferred_language(request.headers)
        page = partial(self._files.page, language, theme if theme in THEMES else "")
        answer = self._answer(request, await anyio.to_thread.run_sync(page))
        answer.headers["vary"] += ", accept-language, cookie"
        return answer

    @route("GET", "/api/docs", allow="anyone")
    async def docs(self, request: Request) -> PageAnswer:
        """Show the documentation of all routes as a page, which reads the OpenAPI document."""
        return self._answer(request, await anyio.to_thread.run_sync(self._files.find, REFERENCE))

    @route("GET", f"{FOLDER}{{path:path}}", allow="anyone")
    async def file(self, request: Request, path: str) -> PageAnswer:
        """Send a file of the console."""
        cached = self._files.find_cached(path)
        return self._answer(request, cached or await anyio.to_thread.run_sync(self._files.find, path))

    def _answer(self, request: Request, file: WebFile | None) -> PageAnswer:
        if file is None:
            raise HTTPException(404, f"There is no {request.url.path!r}.")
        packed = file.packed if accepts_gzip(request.headers) else None
        tag = file.tag if packed is None else f'{file.tag[:-1]}-gzip"'
        headers = {**file.headers, "etag": tag, "vary": "accept-encoding"}
        client_tags = {name.strip().removeprefix("W/") for name in request.headers.get("if-none-match", "").split(",")}
        if tag in client_tags:
            return PageAnswer(status_code=304, headers=headers)
        if packed is not None:
            headers["content-encoding"] = "gzip"
        return PageAnswer(file.data if packed is None else packed, media_type=file.media_type, headers=headers)


def preferred_language(headers: Headers) -> str:
    """Return the language of the console that a client prefers by its ``Accept-Language``; English without one."""
    weights: dict[str, float] = {}
    for part in headers.get("accept-language", "")[:1_000].lower().split(","):
        tag, _, parameter = part.partition(";")
        language = tag.strip().split("-")[0]
        try:
            weight = float(parameter.strip().removeprefix("q=") or 1)
        except ValueError:
            continue
        if language in LANGUAGES and weight > 0:
            weights[language] = max(weight, weights.get(language, 0))
    return max(weights, key=lambda language: weights[language], default="en")
