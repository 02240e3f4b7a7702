"""``python -m agentic_rag.documents.ocr_child``: read the lines of a scanned page, outside the server's process.

Owns the answer for a page. The models are loaded once. A capped child of this process (`fork_server`) reads each page,
at low priority.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import orjson

from agentic_rag.documents.fork_server import begin_answers, receive_jobs, run_capped
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.ocr import Recogniser
from mcp_servers.retriever.formats.pdf import open_pdf
from mcp_servers.retriever.formats.scans import ScanForm

NICENESS = 5
"""Added to the niceness of other readers: scans are less urgent than texts."""


@dataclass(frozen=True, slots=True)
class OcrJob:
    """A page, counted from 1, of a PDF or of an image.

    ``path``: the path of the file descriptor that was sent with the job. ``seconds``: limit of CPU time.
    """

    path: str
    page: int
    is_pdf: bool
    memory_bytes: int
    seconds: float


def frames_of(job: OcrJob, recogniser: Recogniser) -> Iterator[ScanForm]:
    """Yield the page as read by OCR.

    Raises:
        DocumentError: the page cannot be read.
    """
    data = Path(job.path).read_bytes()
    if not job.is_pdf:
        yield recogniser.read_image(data, job.page).to_json()
        return
    with open_pdf(data) as document:
        if not 1 <= job.page <= len(document):
            raise DocumentError("DOCUMENT_BROKEN", f"the document has no page {job.page}")
        yield recogniser.read_pdf_page(document, job.page).to_json()


def main() -> None:
    """Serve jobs until stdin ends."""
    out = begin_answers()
    os.nice(NICENESS)
    recogniser = Recogniser()
    for line, path in receive_jobs():
        job = replace(OcrJob(**orjson.loads(line)), path=path)
        run_capped(
            partial(frames_of, job, recogniser),
            out,
            memory_bytes=job.memory_bytes,
            seconds=job.seconds,
            most_seconds=job.seconds,
        )


if __name__ == "__main__":
    main()
