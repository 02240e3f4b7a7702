"""The end of a turn that no agent runs: removed from the queue, or cut off too often to be resumed.

Owns the transaction of that end. Knows no session in memory.
"""

import anyio
from sqlalchemy import Connection

from agentic_rag.base.events import Resumed, Terminal
from agentic_rag.runtime.acceptance import is_unstarted
from agentic_rag.runtime.log.runlog import RunLog
from agentic_rag.runtime.services import Resources
from agentic_rag.runtime.turn_persistence import end_without_agent
from agentic_rag.store import turns
from agentic_rag.store.turns import TurnRecord


async def end_unstarted(resources: Resources, row: TurnRecord, final: Terminal, resumed: Resumed | None = None) -> bool:
    """Store the terminal event of a turn that no agent runs, after ``resumed`` if the turn had begun.

    Returns False, without any change, if another process has begun the turn meanwhile.
    """
    journal = resources.journal
    # a new log contains only our own texts, so nothing needs redaction
    log = journal.find(row.id) or RunLog(journal, row.conversation_id, row.id, fence=row.fence)
    log.drop_undelivered()  # the first events, if the store refused to begin the turn

    def store(conn: Connection) -> bool:
        if resumed is not None:
            turns.hold(conn, row.id, row.fence)
        elif not is_unstarted(conn, row):
            return False
        end_without_agent(conn, row, final)
        resources.hooks.turn_ended(conn, row, final)
        log.store_first(conn, [final] if resumed is None else [resumed, final])
        return True

    with anyio.CancelScope(shield=True):
        ended = await resources.database.write(store, durable=True)
        if ended:
            log.adopt()
            journal.remove(row.id)
            log.close()
    return ended
