"""The server with a probe of its event loop, for `bench_hazards`.

    probed_server.py PORT DATA SCAN_SECONDS

The process obeys lines on stdin: ``collect`` runs a full garbage collection, ``examine`` the consistency check of a
start, and an empty line does nothing. After each line it prints JSON with three maxima in milliseconds since the last
answer: how long the loop was blocked in wall time and in CPU time of this process, and the CPU time of one garbage
collection. The first line starts the measurement, which costs 3 % of a core.
"""

import gc
import json
import logging
import sys
import time

from agentic_rag.base import garbage

garbage.do_not_look()  # as in `agentic-rag serve`
logging.basicConfig(level=logging.ERROR)  # otherwise MCPServer logs each request

from pathlib import Path  # noqa: E402

import anyio  # noqa: E402
import anyio.abc  # noqa: E402
from pulse import Pulse  # noqa: E402

from agentic_rag.app.application import Application, open_application  # noqa: E402
from agentic_rag.app.serving import bind, serve  # noqa: E402
from agentic_rag.base.settings import load_settings  # noqa: E402


class Collections:
    """The longest garbage collection, in seconds of its thread's CPU time. Nothing else runs meanwhile."""

    def __init__(self) -> None:
        self.longest = self._began = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.longest = max(self.longest, time.thread_time() - self._began)


async def obey(application: Application, tasks: anyio.abc.TaskGroup) -> None:
    """Obey the lines on stdin."""
    lines, pulse, collections = anyio.wrap_file(sys.stdin), Pulse(), Collections()
    await lines.readline()
    tasks.start_soon(pulse.run)
    print("watched", flush=True)
    async for line in lines:
        if line.strip() == "collect":
            gc.collect()
        elif line.strip() == "examine":
            await application.doctor.examine(sums=True)
        await anyio.sleep(0.01)  # so that the loop's next tick is measured
        print(json.dumps([1000 * pulse.clock, 1000 * pulse.cpu, 1000 * collections.longest]), flush=True)
        pulse.reset()
        collections.longest = 0.0


async def main(port: int, data: Path, scan_seconds: float) -> None:
    """Serve until a signal arrives."""
    settings = load_settings(port=port, data=data)
    listener = bind(settings.host, settings.port)
    async with open_application(settings, scan_seconds=scan_seconds) as application, anyio.create_task_group() as tasks:
        tasks.start_soon(obey, application, tasks)
        await serve(application, listener, lambda: None)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    port, data, scan_seconds = sys.argv[1:]
    anyio.run(main, int(port), Path(data), float(scan_seconds), backend_options={"use_uvloop": True})
