"""The index process: ``python -m mcp_servers.retriever.index_process FOLDER PARENT AT_WORK [SUSPECT]``.

Requests arrive as frames on stdin, and answers go to stdout (`frames`, `index_frames`). One thread alternates between
receiving requests and executing one read or one step of a write. Reads have priority, and collections with writes take
turns, so that a long write delays neither a search nor another collection. The process exits at the end of stdin and
when its parent dies.

``AT_WORK`` is the descriptor of eight bytes of shared memory, which hold the number of the request being executed: if
the process crashes, the parent knows which request caused it. ``SUSPECT`` is a collection over which earlier processes
died: it is quarantined without being opened.
"""

import ctypes
import fcntl
import gc
import mmap
import os
import select
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from mcp_servers.frames import Frame, FrameReader, send_frame, take_stdout
from mcp_servers.retriever.document import Json
from mcp_servers.retriever.edge_collections import EdgeCollections, Steps
from mcp_servers.retriever.errors import IndexFault, IndexOwned, IndexUnavailable
from mcp_servers.retriever.index import Calibration, CandidateLimit, CollectionMeta, split_name
from mcp_servers.retriever.index_frames import (
    pack_chunks,
    pack_fault,
    pack_legs,
    pack_sample,
    unpack_chunks,
    unpack_dense,
    unpack_selection,
    unpack_sparse,
    unpack_vectors,
)

HELLO = 0
"""Number of the first answer, which reports that the process owns the folder, or why not. No request has it."""

READS_IN_A_ROW = 8
"""Reads executed in a row before a waiting write gets a step."""

PIPE_BYTES = 2**20
"""Requested size of a pipe's buffer, so that a batch takes one write."""

F_SETPIPE_SZ = 1031
PR_SET_PDEATHSIG = 1
"""From ``linux/fcntl.h`` and ``linux/prctl.h``."""


# The methods of `Index`: a read and a short write return their answer, a long write is an iterator of steps.


def _chunks(index: EdgeCollections, data: Json, _: bytes) -> Frame:
    chunks = index.chunks(data["collection"], data["document_id"], data["offset"], data["limit"])
    return Frame({"value": pack_chunks(chunks)})


def _count(index: EdgeCollections, data: Json, _: bytes) -> Frame:
    return Frame({"value": index.count(data["collection"], data.get("document_id"))})


def _document_names(index: EdgeCollections, data: Json, _: bytes) -> Frame:
    names = index.document_names(data["collection"], unpack_selection(data["selection"]), data["part"])
    return Frame({"value": names})


def _existing(index: EdgeCollections, data: Json, _: bytes) -> Frame:
    return Frame({"value": [*index.existing(data["collection"], data["chunk_ids"])]})


def _get(index: EdgeCollections, data: Json, _: bytes) -> Frame:
    return Frame({"value": pack_chunks(index.get(data["collection"], data["chunk_ids"]).values())})


def _meta(index: EdgeCollections, data: Json, _: bytes) -> Frame:
    meta = index.meta(data["collection"])
    return Frame({"value": meta.to_json() if meta else None})


def _sample(index: EdgeCollections, data: Json, _: bytes) -> Frame:
    return pack_sample(index.sample(data["collection"], data["limit"]))


def _search_legs(index: EdgeCollections, data: Json, floats: bytes) -> Frame:
    vector = unpack_vectors(floats, 1)[0] if floats else None
    selection = unpack_selection(data["selection"])
    lead = CandidateLimit(**data["lead"]) if "lead" in data else None
    legs, records = index.search_records(data["collection"], data["query"], vector, selection, data["limit"], lead)
    return Frame({"value": pack_legs(legs, {chunk_id: record.payload or {} for chunk_id, record in records.items()})})


def _without_dense(index: EdgeCollections, data: Json, _: bytes) -> Frame:
    return Frame({"value": pack_chunks(index.without_dense(data["collection"], data["limit"]))})


def _drop(index: EdgeCollections, data: Json, _: bytes) -> Frame:
    index.drop(data["collection"])
    return Frame({})


def _rebuild(index: EdgeCollections, data: Json, _: bytes) -> Frame:
    return Frame({"value": index.rebuild(data["collection"], CollectionMeta.from_json(data["meta"]))})


def _roll_back(index: EdgeCollections, data: Json, _: bytes) -> Frame:
    return Frame({"value": index.roll_back(data["collection"])})


def _set_calibration(index: EdgeCollections, data: Json, _: bytes) -> Frame:
    index.set_calibration(data["collection"], Calibration.from_json(data["calibration"]))
    return Frame({})


def _swap(index: EdgeCollections, data: Json, _: bytes) -> Frame:
    index.swap(data["collection"], data["generation"])
    return Frame({})


def _add_dense(index: EdgeCollections, data: Json, floats: bytes) -> Steps:
    ids = data["chunk_ids"]
    dense = unpack_dense(data, floats, len(ids))
    assert dense is not None
    return index.add_dense(data["collection"], ids, dense)


def _delete_document(index: EdgeCollections, data: Json, _: bytes) -> Steps:
    return index.delete_document(data["collection"], data["document_id"])


def _upsert(index: EdgeCollections, data: Json, floats: bytes) -> Steps:
    chunks = unpack_chunks(data["chunks"])
    dense = unpack_dense(data, floats, len(chunks))
    lexical = unpack_sparse(data["lexical"])
    return index.upsert(data["collection"], chunks, dense, lexical, known_only=data.get("known_only", False))


Answering = Callable[[EdgeCollections, Json, bytes], Frame]

READS: dict[str, Answering] = {
    "chunks": _chunks,
    "count": _count,
    "document_names": _document_names,
    "existing": _existing,
    "get": _get,
    "meta": _meta,
    "sample": _sample,
    "search_legs": _search_legs,
    "without_dense": _without_dense,
}
SHORT_WRITES: dict[str, Answering] = {
    "drop": _drop,
    "rebuild": _rebuild,
    "roll_back": _roll_back,
    "set_calibration": _set_calibration,
    "swap": _swap,
}
LONG_WRITES: dict[str, Callable[[EdgeCollections, Json, bytes], Steps]] = {
    "add_dense": _add_dense,
    "delete_document": _delete_document,
    "upsert": _upsert,
}


@dataclass(slots=True)
class _Write:
    """A request that changes a collection; ``steps`` is the iterator of a long write that has begun."""

    number: int
    request: Frame
    steps: Steps | None = None


class Service:
    """Executes the requests of one parent in the order that the module's docstring describes."""

    def __init__(self, index: EdgeCollections, source: int, sink: int, at_work: mmap.mmap) -> None:
        self._index = index
        self._source = source
        self._sink = sink
        self._at_work = at_work
        self._frames = FrameReader()
        self._reads: deque[Frame] = deque()
        self._writes: dict[str, deque[_Write]] = {}
        """Waiting writes by collection, in the order in which the collections get their next step."""

    def run(self) -> None:
        """Execute requests until the parent closes its end of the pipe."""
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        in_a_row = 0
        while True:
            idle = not self._reads and not self._writes
            if poll.poll(None if idle else 0) and not self._receive():
                return
            if self._reads and (in_a_row < READS_IN_A_ROW or not self._writes):
                in_a_row += 1
                self._answer_read(self._reads.popleft())
            elif self._writes:
                in_a_row = 0
                self._take_step()

    def _receive(self) -> bool:
        """Queue the requests that have arrived; return False at the end of the input."""
        data = os.read(self._source, PIPE_BYTES)
        for frame in self._frames.feed(data):
            if frame.data["method"] in READS:
                self._reads.append(frame)
            else:
                # Generations of a collection share a queue, so that a swap runs after the writes before it.
                name = split_name(frame.data["collection"])[0]
                self._writes.setdefault(name, deque()).append(_Write(frame.data["number"], frame))
        return bool(data)

    def _answer_read(self, request: Frame) -> None:
        number = request.data["number"]
        self._note(number)
        try:
            answer = READS[request.data["method"]](self._index, request.data, request.floats)
        except BaseException as exc:
            self._answer_fault(request, exc)
        else:
            self._send(number, answer)

    def _take_step(self) -> None:
        name = next(iter(self._writes))
        queue = self._writes.pop(name)
        write = queue[0]
        self._note(write.number)
        try:
            answer = self._step(write)
        except BaseException as exc:
            queue.popleft()
            self._answer_fault(write.request, exc)
        else:
            if answer is not None:
                queue.popleft()
                self._send(write.number, answer)
        if queue:
            self._writes[name] = queue

    def _step(self, write: _Write) -> Frame | None:
        """Execute a short write or one step of a long one; return the answer, or None if steps remain."""
        request = write.request
        method = request.data["method"]
        if method in SHORT_WRITES:
            return SHORT_WRITES[method](self._index, request.data, request.floats)
        if write.steps is None:
            write.steps = LONG_WRITES[method](self._index, request.data, request.floats)
        return Frame({}) if next(write.steps, write.steps) is write.steps else None

    def _note(self, number: int) -> None:
        self._at_work[:8] = number.to_bytes(8, "little")

    def _answer_fault(self, request: Frame, exc: BaseException) -> None:
        """Send a fault as the answer, then end the process if it was a panic of the engine, which is no `Exception`."""
        fault = self._index.diagnose(request.data["collection"], exc)
        if not isinstance(fault, IndexFault):
            fault = IndexUnavailable("answer", f"{type(exc).__name__}: {exc}")
        self._send(request.data["number"], Frame({"fault": pack_fault(fault)}))
        if not isinstance(exc, Exception):
            raise exc

    def _send(self, number: int, answer: Frame) -> None:
        self._note(HELLO)
        send(self._sink, number, answer)


def send(sink: int, number: int, answer: Frame) -> None:
    """Write a complete answer to ``sink``. Raises `BrokenPipeError` if the parent has closed the pipe."""
    send_frame(sink, Frame({**answer.data, "number": number}, answer.floats))


def _bind_life(parent: int) -> None:
    """Die with the parent, but ignore signals meant for the parent, which ends this process after its last search."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the signal was set
        raise SystemExit(1)


def main() -> None:
    """Serve the folder until stdin ends."""
    folder, parent, at_work, *suspects = sys.argv[1:]
    _bind_life(int(parent))
    source, sink = os.dup(0), take_stdout()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if sys.platform.startswith("linux"):
        for pipe in (source, sink):
            try:
                fcntl.fcntl(pipe, F_SETPIPE_SZ, PIPE_BYTES)
            except OSError:
                break  # the user's limit of pipe memory is reached: the default size works too
    try:
        index = EdgeCollections(Path(folder))
        for suspect in suspects:
            index.put_aside(suspect, "read a collection", "the index process died of it, twice")
    except (IndexOwned, OSError) as exc:
        fault = exc if isinstance(exc, IndexOwned) else IndexUnavailable("open", str(exc))
        send(sink, HELLO, Frame({"fault": pack_fault(fault)}))
        raise SystemExit(1) from None
    code = 0
    gc.freeze()  # a full collection would walk the imported modules, which takes as long as a search
    try:
        send(sink, HELLO, Frame({}))
        Service(index, source, sink, mmap.mmap(int(at_work), 8)).run()
    except BrokenPipeError:
        pass
    except BaseException:
        traceback.print_exc()
        code = 1
    _end(index, code)


def _end(index: EdgeCollections, code: int) -> NoReturn:
    """Flush and exit at once: closing a thousand collections takes seconds, and the exit frees the same resources."""
    try:
        index.flush()
    except BaseException:  # a panic of the engine is no `Exception`; its log still has unflushed changes
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
