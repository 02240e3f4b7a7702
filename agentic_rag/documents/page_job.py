"""What a process that draws pages is asked, and what it answers.

Owns the values alone, so that the server, which asks, loads no PDFium.
"""

from dataclasses import dataclass
from typing import TypedDict


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle as shares of the page, 0 to 1, from its upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Marks:
    """Where a passage stands on a page of so many points, and where the cited part of it; ``whole``: in one piece."""

    width: float
    height: float
    passage: tuple[Box, ...]
    cited: tuple[Box, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class PageJob:
    """A page, from 1, to be drawn ``width`` pixels wide; or, at 0, to be searched for a passage.

    ``sentences`` and ``cited`` are starts and ends in the passage, of ``cited`` none or one. ``path``: of the
    descriptor that came along. ``seconds``: of the processor's time. ``is_image``: the file is an image and no PDF.
    """

    path: str
    sha256: str
    page: int
    width: int
    memory_bytes: int
    seconds: float
    passage: str = ""
    sentences: tuple[tuple[int, int], ...] = ()
    cited: tuple[tuple[int, int], ...] = ()
    is_image: bool = False


class PageFrame(TypedDict, total=False):
    """What is answered: an image as base64, or the boxes of a passage; neither where there is no such page."""

    pages: int
    png: str
    width: float
    height: float
    passage: list[tuple[float, float, float, float]]
    cited: list[tuple[float, float, float, float]]
    whole: bool
