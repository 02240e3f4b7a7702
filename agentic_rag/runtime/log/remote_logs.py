"""Live events to and from the other processes of a shared store.

Owns both ends of a `Fanout`. It publishes the events of those turns here that another process reads; most turns have no
such reader and cost nothing. It mirrors turns that run in other processes, and fills gaps from rows. Only events that
are not yet in rows are published, and a lost message is read from rows a moment later. Knows no turn.

A message about a turn is a line ``{first} {stored}``, followed by the events from number ``first``, each a line of
JSON. A message without events only says up to which number rows exist. A process that follows turns publishes their
ids, one per line, and repeats this regularly.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import anyio
from sqlalchemy import Connection

from agentic_rag.base.errors import StorageError
from agentic_rag.base.events import AgentEvent, decode
from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.runtime.log.fanout import Fanout, Hear
from agentic_rag.runtime.log.mirror import Mirror, Wake
from agentic_rag.store import run_events, turns
from agentic_rag.store.database import Database

logger = logging.getLogger(__name__)

WANTS = "wants"
"""The topic for the turns that processes follow."""
PUBLISH_SECONDS = 0.02
"""Between two rounds of publishing."""
WANT_SECONDS = 4.0
"""Between two announcements of the turns that this process follows."""
PUBLISH_SECONDS = 15.0
"""After the last announcement, how long a turn's events are published."""
FILL_SECONDS, LAST_FILL_SECONDS = 0.05, 1.0
"""Between two reads of missing rows. The delay doubles from the first value up to the second."""
LOOK_SECONDS = 1.0
"""Between two checks for rows that no message announced."""
IDLE_SECONDS = 10.0
"""How long a mirror without readers is kept."""
MOST_MESSAGES = 8
"""Messages about one turn that are sent together. If more are due, readers use the rows that exist."""
PAGE = 500
NAMES = 150
"""Most turns named in one message."""


class LogSource(Protocol):
    """A log whose turn runs in this process; see `runlog.RunLog`."""

    turn_id: TurnId
    journalled: int
    visible: int
    ended: bool
    moved: bool

    def since(self, after: int) -> list[AgentEvent] | None: ...
    def listen(self, wake: Wake) -> None: ...
    def unlisten(self, wake: Wake) -> None: ...


class _PublishedLog:
    """A log that other processes read. ``sent``: number of the last published event."""

    def __init__(self, log: LogSource, wake: Wake) -> None:
        self.log = log
        self.wake = wake
        self.sent = log.journalled
        self.until = 0.0


class RemoteLogs:
    """Publishes and receives the live events of one process. `run` does the work."""

    def __init__(self, database: Database, fanout: Fanout) -> None:
        self._db = database
        self._fanout = fanout
        self._logs: dict[TurnId, LogSource] = {}
        self._published: dict[TurnId, _PublishedLog] = {}
        self._dirty: dict[_PublishedLog, None] = {}
        self._to_send = anyio.Event()
        self._mirrors: dict[TurnId, Mirror] = {}
        self._hears: dict[TurnId, Hear] = {}
        self._used: dict[TurnId, float] = {}
        """When each mirror was last read."""
        self._doubtful: set[TurnId] = set()
        """Turns of which some events may have been missed."""
        self._to_fill = anyio.Event()

    async def run(self) -> None:
        """Publish, receive and fill gaps until cancelled."""
        self._fanout.subscribe(WANTS, self._on_wants)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._fanout.run)
            tasks.start_soon(self._send)
            tasks.start_soon(self._fill)
            tasks.start_soon(self._want_again)
            tasks.start_soon(self._look)

    # Turns that run here

    def begin(self, log: LogSource) -> None:
        """Register a turn that runs here. Readers in this process read its log directly."""
        self._logs[log.turn_id] = log
        self._drop_mirror(log.turn_id)

    def end(self, turn_id: TurnId) -> None:
        """Unregister a turn that no longer runs here. Its visible events are still published."""
        self._logs.pop(turn_id, None)
        published = self._published.pop(turn_id, None)
        if published is not None:
            published.log.unlisten(published.wake)
            self._send_one(published)

    def _on_wants(self, message: bytes | None) -> None:
        for line in (message or b"").split():
            turn_id = TurnId(line.decode())
            log = self._logs.get(turn_id)
            if log is None:
                continue
            published = self._published.get(turn_id)
            if published is None:
                published = self._published[turn_id] = _PublishedLog(log, partial(self._note, turn_id))
                log.listen(published.wake)
            published.until = anyio.current_time() + PUBLISH_SECONDS
            published.sent = min(published.sent, log.journalled)  # a new follower has only the rows
            self._note(turn_id)

    def _note(self, turn_id: TurnId) -> None:
        if (published := self._published.get(turn_id)) is not None:
            self._dirty[published] = None
            self._to_send.set()

    async def _send(self) -> None:
        while True:
            await self._to_send.wait()
            self._to_send = anyio.Event()
            due, self._dirty = self._dirty, {}
            at = anyio.current_time()
            for published in due:
                if published.until < at:
                    published.log.unlisten(published.wake)
                    self._published.pop(published.log.turn_id, None)
                else:
                    self._send_one(published)
            await anyio.sleep(PUBLISH_SECONDS)

    def _send_one(self, published: _PublishedLog) -> None:
        """Publish the visible events that were not published before."""
        log, room = published.log, self._fanout.room
        events = log.since(published.sent)
        if events is None or sum(len(event.data) for event in events) > MOST_MESSAGES * room:
            self._fanout.publish(_topic(log.turn_id), b"0 %d" % log.journalled)
            published.sent = log.journalled
            events = log.since(published.sent) or []
        while events:
            count, size = 0, 64
            while count < len(events) and size + len(events[count].data) + 1 <= room:
                size += len(events[count].data) + 1
                count += 1
            if not count:  # too large for a message, so readers use its row, at the latest a moment later
                self._fanout.publish(_topic(log.turn_id), b"0 %d" % events[0].seq)
                count = 1
            else:
                head = b"%d %d" % (events[0].seq, log.journalled)
                self._fanout.publish(_topic(log.turn_id), b"\n".join([head, *(event.data for event in events[:count])]))
            published.sent = events[count - 1].seq
            events = events[count:]

    # Turns that run elsewhere

    async def mirror(self, turn_id: TurnId) -> Mirror | None:
        """Return the log of a turn that has not ended and does not run here, or None if there is no such turn.

        Raises:
            StorageError: the store cannot be read now.
        """
        if (mirror := self._mirrors.get(turn_id)) is None:

            def look(conn: Connection) -> tuple[ConversationId, int] | None:
                row = turns.get(conn, turn_id)
                is_running = row is not None and row.status not in turns.FINISHED
                return (row.conversation_id, run_events.last_seq(conn, turn_id)) if row and is_running else None

            start = await self._db.read(look)
            mirror = self._mirrors.get(turn_id)
            if start is None or turn_id in self._logs:
                return None
            if mirror is None:
                mirror = self._mirrors[turn_id] = Mirror(start[0], turn_id, start[1])
                callback = self._hears[turn_id] = partial(self._hear, turn_id)
                self._fanout.subscribe(_topic(turn_id), callback)
                self._fanout.publish(WANTS, turn_id.encode())
        self._used[turn_id] = anyio.current_time()
        return mirror

    def announce_reader(self, turn_id: TurnId) -> None:
        """Tell the new owner of a mirrored turn that readers in this process follow the turn."""
        if turn_id in self._mirrors:
            self._fanout.publish(WANTS, turn_id.encode())

    def wake_readers(self) -> None:
        """Wake all readers, to deliver a notice that is not part of a log."""
        for mirror in list(self._mirrors.values()):
            mirror.wake_readers()

    def _drop_mirror(self, turn_id: TurnId) -> None:
        mirror = self._mirrors.pop(turn_id, None)
        if mirror is not None:
            self._fanout.unsubscribe(_topic(turn_id), self._hears.pop(turn_id))
            self._used.pop(turn_id, None)
            mirror.hand_over()

    def _hear(self, turn_id: TurnId, message: bytes | None) -> None:
        mirror = self._mirrors.get(turn_id)
        if mirror is None:
            return
        if message is None:  # earlier messages may be lost
            self._doubtful.add(turn_id)
            self._fanout.publish(WANTS, turn_id.encode())
        else:
            head, *lines = message.split(b"\n")
            first, stored_seq = map(int, head.split())
            mirror.learn(stored_seq)
            if lines:
                mirror.take_live([decode(turn_id, seq, line) for seq, line in enumerate(lines, first)])
        if mirror.behind or message is None:
            self._to_fill.set()

    async def _fill(self) -> None:
        """Read the rows that mirrors miss."""
        delay = FILL_SECONDS
        while True:
            await self._to_fill.wait()
            self._to_fill = anyio.Event()
            due = [mirror for turn_id, mirror in self._mirrors.items() if mirror.behind or turn_id in self._doubtful]
            self._doubtful.clear()
            moved = await self._read_rows(due)
            if any(mirror.behind for mirror in due if not mirror.moved):
                delay = FILL_SECONDS if moved else min(2 * delay, LAST_FILL_SECONDS)
                with anyio.move_on_after(delay):
                    await self._to_fill.wait()
                self._to_fill.set()
            else:
                delay = FILL_SECONDS

    async def _read_rows(self, mirrors: Sequence[Mirror]) -> bool:
        """Add the next rows to mirrors. Return whether there were any."""

        def read(conn: Connection) -> list[list[tuple[int, bytes]]]:
            return [run_events.read(conn, mirror.turn_id, after, PAGE) for mirror, after in places]

        places = [(mirror, mirror.visible) for mirror in mirrors]
        try:
            pages = await self._db.read(read)
        except StorageError as exc:
            logger.debug("rows are read later: %s", exc)
            return False
        for mirror, page in zip(mirrors, pages, strict=True):
            mirror.take_stored([decode(mirror.turn_id, seq, payload) for seq, payload in page])
        return any(pages)

    async def _look(self) -> None:
        """Check the store regularly for rows that no message announced, and drop unused mirrors."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            at = anyio.current_time()
            for turn_id, mirror in list(self._mirrors.items()):
                if mirror.read:
                    self._used[turn_id] = at
                elif at - self._used[turn_id] > IDLE_SECONDS:
                    self._drop_mirror(turn_id)
            turn_ids = [turn_id for turn_id, mirror in self._mirrors.items() if not mirror.ended]
            if not turn_ids:
                continue
            try:
                last = await self._db.read(partial(run_events.last_seqs, turn_ids=turn_ids))
            except StorageError as exc:
                logger.debug("rows are looked for later: %s", exc)
                continue
            for turn_id in turn_ids:
                copy = self._mirrors.get(turn_id)
                if turn_id not in last and copy is not None and copy.visible:  # deleted with its conversation
                    copy.end()
            for turn_id, seq in last.items():
                copy = self._mirrors.get(turn_id)
                if copy is not None and seq > copy.visible:
                    copy.learn(seq)
                    self._to_fill.set()

    async def _want_again(self) -> None:
        while True:
            await anyio.sleep(WANT_SECONDS)
            names = [turn_id.encode() for turn_id, mirror in self._mirrors.items() if mirror.read and not mirror.ended]
            for at in range(0, len(names), NAMES):
                self._fanout.publish(WANTS, b"\n".join(names[at : at + NAMES]))


def _topic(turn_id: TurnId) -> str:
    return f"live_{turn_id}"
