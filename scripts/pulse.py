"""How long an event loop is silent: what `bench_memory` and `probed_server` look at."""

import time

import anyio

TICK_SECONDS = 0.001


class Pulse:
    """The longest time between two ticks of the event loop: by the clock, and in CPU time of this process; seconds.

    Where other programs share the machine the second is ours, the first is theirs too.
    """

    def __init__(self) -> None:
        self.clock = self.cpu = 0.0

    async def run(self) -> None:
        """Look until cancelled."""
        clock, cpu = time.perf_counter(), time.process_time()
        while True:
            await anyio.sleep(TICK_SECONDS)
            was_clock, was_cpu = clock, cpu
            clock, cpu = time.perf_counter(), time.process_time()
            self.clock = max(self.clock, clock - was_clock - TICK_SECONDS)
            self.cpu = max(self.cpu, cpu - was_cpu)

    def reset(self) -> None:
        """Forget what was seen."""
        self.clock = self.cpu = 0.0
