"""``python -m agentic_rag.documents.page_child``: draw or search a page of a PDF or an image, outside the server.

Owns the answer for a page. Each job runs in a capped child of this process (`fork_server`). The file's hash must match
the job, otherwise the job is refused: a page of other bytes would show other words.
"""

import hashlib
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import orjson

from agentic_rag.documents.fork_server import begin_answers, receive_jobs, run_capped
from agentic_rag.documents.page_job import PageFrame, PageJob
from agentic_rag.documents.pdf_pages import draw, encode_png, mark, pixels_of
from agentic_rag.documents.text_positions import Range
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.ocr import count_frames, load_picture, open_image
from mcp_servers.retriever.formats.pdf import open_pdf

CHANGED = "the file is not the one that was read into the index; it is being read again, or was put there by hand"


def frames_of(job: PageJob) -> Iterator[PageFrame]:
    """Yield the answer to a job.

    Raises:
        DocumentError: the file is not a PDF or image that can be opened, or its hash differs from the job's.
    """
    data = Path(job.path).read_bytes()
    if hashlib.sha256(data).hexdigest() != job.sha256:
        raise DocumentError("DOCUMENT_MISSING", CHANGED)
    if job.is_image:
        yield _draw_image(data, job)
        return
    with open_pdf(data) as document:
        count = len(document)
        if not 1 <= job.page <= count:
            yield {"pages": count}
            return
        page = document[job.page - 1]
        if job.width:
            drawing = draw(page, job.width)
            png = b64encode(drawing.png).decode()
            yield {"pages": count, "png": png, "width": drawing.width, "height": drawing.height}
            return
        cited = [Range(*span) for span in job.cited]
        marks = mark(page, job.passage, [Range(*span) for span in job.sentences], cited[0] if cited else None)
        yield {
            "pages": count,
            "width": marks.width,
            "height": marks.height,
            "passage": [(box.x, box.y, box.width, box.height) for box in marks.passage],
            "cited": [(box.x, box.y, box.width, box.height) for box in marks.cited],
            "whole": marks.whole,
        }


def _draw_image(data: bytes, job: PageJob) -> PageFrame:
    """Return an image, or one frame of a TIFF, rotated as OCR read it."""
    image = open_image(data)
    count = count_frames(image)
    if not 1 <= job.page <= count:
        return {"pages": count}
    picture = load_picture(image, job.page, 2 * job.width)
    width, height = pixels_of(picture.size, min(job.width, picture.width))
    picture = picture.resize((width, height), reducing_gap=2.0)
    png = b64encode(encode_png(picture.tobytes(), width, height)).decode()
    return {"pages": count, "png": png, "width": width, "height": height}


def main() -> None:
    """Serve jobs until stdin ends."""
    out = begin_answers()
    for line, path in receive_jobs():
        job = replace(PageJob(**orjson.loads(line)), path=path)
        run_capped(
            partial(frames_of, job),
            out,
            memory_bytes=job.memory_bytes,
            seconds=job.seconds,
            most_seconds=job.seconds,
        )


if __name__ == "__main__":
    main()
