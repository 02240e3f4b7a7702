"""Measure how long an event loop is blocked, for `bench_memory` and `probed_server`."""

import time

import anyio

TICK_SECONDS = 0.001


class Pulse:
    """The longest pause between two ticks of the event loop in seconds: wall time, and CPU time of this process.

    On a shared machine only the CPU time is free of other programs.
    """

    def __init__(self) -> None:
        self.clock = self.cpu = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        clock, cpu = time.perf_counter(), time.process_time()
        while True:
            await anyio.sleep(TICK_SECONDS)
            was_clock, was_cpu = clock, cpu
            clock, cpu = time.perf_counter(), time.process_time()
            self.clock = max(self.clock, clock - was_clock - TICK_SECONDS)
            self.cpu = max(self.cpu, cpu - was_cpu)

    def reset(self) -> None:
        """Reset both maxima."""
        self.clock = self.cpu = 0.0
