"""Background installation of packages that saved entries need.

Owns the queue and the outcome of each installation. Knows no entries: `packages` installs, and the code that saves an
entry calls `Installations.begin`.
"""

import logging

import anyio

from agentic_rag.base.errors import AgenticRagError
from agentic_rag.base.workers import Queue
from agentic_rag.tools.launch.catalogue import Package
from agentic_rag.tools.launch.packages import Packages

log = logging.getLogger(__name__)

AT_ONCE = 2
MAX_REMEMBERED = 500
"""Maximum number of packages whose failed installation is remembered with the reason."""


class Installations:
    """The packages of one data folder that are being installed."""

    def __init__(self, packages: Packages) -> None:
        self._packages = packages
        self._waiting: Queue[Package] = Queue()
        self._under_way: set[Package] = set()
        self._failures: dict[Package, str] = {}
        self._working = False

    @property
    def working(self) -> bool:
        """Whether this process runs the queue: only a serving process does."""
        return self._working

    def begin(self, package: Package) -> None:
        """Queue a package for installation, unless it is queued or being installed already."""
        if self._working and package not in self._under_way:
            self._failures.pop(package, None)
            self._under_way.add(package)
            self._waiting.put(package)

    def is_under_way(self, package: Package) -> bool:
        """Return whether a package is queued or being installed."""
        return package in self._under_way

    def failure(self, package: Package) -> str:
        """Return why the last installation of a package failed; empty if it did not fail or was never tried."""
        return self._failures.get(package, "")

    async def run(self) -> None:
        """Install queued packages until cancelled."""
        self._working = True
        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                tasks.start_soon(self._work)

    async def _work(self) -> None:
        while True:
            package = await self._waiting.get()
            try:
                await self._packages.install(package)
            except (AgenticRagError, OSError) as exc:
                log.warning("%s", exc)
                if len(self._failures) >= MAX_REMEMBERED:
                    self._failures.clear()
                self._failures[package] = str(exc)
            finally:
                self._under_way.discard(package)
