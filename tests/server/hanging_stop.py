"""A process whose stop hangs: a thread, as one that waits for a folder, never ends."""

import threading

from agentic_rag.app.serving import end_at_last


def main() -> None:
    end_at_last(0.1)
    threading.Thread(target=threading.Event().wait).start()
