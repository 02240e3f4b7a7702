"""An incremental reader for server-sent events.

Owns the line and field rules of the event-stream format (HTML standard, "9.2.6 Interpreting an event stream")
and a bound on memory. Pure: bytes in, events out; it knows no HTTP, no JSON and no model. ``id`` and ``retry``
fields are skipped, since nothing here reconnects.
"""

from agentic_rag.base.errors import EventTooLarge

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Size limit of a line and of one event's data. A larger one is an attack or a fault of the service."""

_BOM = b"\xef\xbb\xbf"


class SSEReader:
    """Parses a stream of bytes into events. Any division into chunks gives the same events.

    Data stays bytes, because a chunk may end inside a UTF-8 sequence and JSON parsers accept bytes.
    """

    __slots__ = ("_after_cr", "_data", "_first", "_limit", "_name", "_size", "_tail", "_too_large")

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._tail = bytearray()  # the open line
        self._after_cr = False  # the last byte was a CR; a following LF belongs to the same line end
        self._first = True  # a byte order mark may open the first line
        self._name = b""
        self._data: list[bytes] = []
        self._size = 0
        self._too_large = False

    def feed(self, chunk: bytes) -> list[tuple[str, bytes]]:
        """Return the events that are complete with this chunk: ``(name, data)``.

        ``name`` defaults to ``message``. Lines of data are joined by a line feed. Events without data are skipped.
        The standard drops an incomplete event at the end of a stream, so there is no flush.

        Raises:
            EventTooLarge: a line or an event is too large; the reader stops. If the same chunk holds complete events
                before, this call returns them and the next call raises.
        """
        if self._too_large:
            raise EventTooLarge(self._limit)
        between_events = not (self._tail or self._data or self._name or self._after_cr)
        if between_events and len(chunk) <= self._limit and (usual_events := _read_usual(chunk)):
            self._first = False
            return usual_events
        events: list[tuple[str, bytes]] = []
        try:
            for line in self._lines(chunk):
                if line[:6] == b"data: ":
                    self._add(line[6:])
                elif not line:
                    if self._data:
                        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                        if data:
                            events.append((self._name.decode("utf-8", "replace") or "message", data))
                    self._name, self._data, self._size = b"", [], 0
                elif line[:7] == b"event: ":
                    self._name = line[7:]
                else:
                    self._field(line)
            self._check(len(self._tail))
        except EventTooLarge:
            if not events:
                raise
        return events

    def _lines(self, chunk: bytes) -> list[bytes]:
        """Return the lines completed by this chunk, without line ends. The rest waits in the tail."""
        if not chunk:
            return []
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._after_cr = False
        if chunk:
            self._after_cr = chunk[-1:] == b"\r"
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        last = lines.pop()
        if lines and self._tail:
            lines[0] = bytes(self._tail) + lines[0]
            self._tail.clear()
        if last:
            self._tail += last
        if lines and self._first:
            self._first = False
            lines[0] = lines[0].removeprefix(_BOM)
        return lines

    def _add(self, data: bytes) -> None:
        self._size += len(data) + 1
        self._check(self._size)
        self._data.append(data)

    def _check(self, size: int) -> None:
        if size > self._limit:
            self._too_large = True
            raise EventTooLarge(self._limit)

    def _field(self, line: bytes) -> None:
        """Process a line in an unusual spelling. A comment has an empty field name and is skipped."""
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._add(value)
        elif name == b"event":
            self._name = value


def _read_usual(chunk: bytes) -> list[tuple[str, bytes]] | None:
    """Return the events of a chunk that holds only whole events in the usual spelling, as most chunks do, else None.

    Nearly every chunk of an answer is one such event, so this is worth a second way of reading.
    """
    if chunk[-2:] != b"\n\n" or b"\r" in chunk:
        return None
    events: list[tuple[str, bytes]] = []
    for event in chunk[:-2].split(b"\n\n"):
        name, _, data = event.partition(b"\ndata: ")
        if name[:7] != b"event: " or not data or b"\n" in name or b"\n" in data:
            return None
        events.append((name[7:].decode("utf-8", "replace") or "message", data))
    return events
