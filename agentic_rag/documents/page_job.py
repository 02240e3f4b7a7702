"""Jobs and answers of the process that draws pages.

Owns the values only, so that the server can send jobs without loading PDFium.
"""

from dataclasses import dataclass
from typing import TypedDict


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle as fractions of the page, 0 to 1, from the upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Marks:
    """The boxes of a passage on a page, and the boxes of the cited part.

    ``width`` and ``height`` are the page's size in points. ``whole``: the whole passage was found, in one piece.
    """

    width: float
    height: float
    passage: tuple[Box, ...]
    cited: tuple[Box, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class PageJob:
    """A page, counted from 1, to be drawn ``width`` pixels wide; with a width of 0, to be searched for a passage.

    ``sentences`` and ``cited`` are starts and ends in the passage; ``cited`` has at most one. ``path``: the path of the
    file descriptor that was sent with the job. ``seconds``: limit of CPU time. ``is_image``: the file is an image, not
    a PDF.
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
    """The answer: an image as base64, or the boxes of a passage; neither if the page does not exist."""

    pages: int
    png: str
    width: float
    height: float
    passage: list[tuple[float, float, float, float]]
    cited: list[tuple[float, float, float, float]]
    whole: bool
