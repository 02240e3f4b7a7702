"""Simulate many servers on one database: 100 000 connected clients, 5 000 running turns, servers that come and go.

    python -m bench.scale                       the run of docs/scale.md
    python -m bench.scale --servers 20 --users 50000 --minutes 10

Nothing is measured here. The costs are those that the benchmarks measured (`Costs`), each with its source. A server is
a queue of processor time and the database is a queue of commits, both in steps of `STEP` seconds. Turns arrive at
random. Meanwhile servers are killed, all are restarted one after the other, the database is away for ten seconds, and
for two minutes twice as many people ask.
"""

import argparse
import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

STEP = 0.1
"""Seconds of one step."""
WARM_UP = 60.0
"""Seconds before figures count, in which the first turns begin."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor seconds, commits and times of one server. An assumption says so."""

    turn: float = 0.020
    """Processor time of a turn without its deltas, on PostgreSQL (`scripts/faults replicas`)."""
    delta: float = 183e-6
    """Processor time of a delta (`scripts/bench_overhead`)."""
    deltas: int = 300
    """Deltas of a turn: an assumption."""
    socket: float = 0.014 / 300
    """Share of a core for a socket that follows a conversation (`scripts/faults replicas`)."""
    socket_bytes: int = 43_000
    """Memory of such a socket (`scripts/faults replicas`)."""
    reconnect: float = 0.005
    """Processor time of a client that connects and resumes: an assumption."""
    takeover: float = 0.030
    """Processor time to load the session of a turn of a dead server: an assumption."""
    turn_commits: int = 6
    """Transactions of a turn (`scripts/faults replicas`)."""
    idle_queries: float = 8.0
    """Queries a second of an idle server (`scripts/faults replicas`)."""
    commits: float = 4_690.0
    """Durable commits a second of one PostgreSQL with 16 writers (`scripts/faults replicas`)."""
    lease: float = 16.0
    """Seconds until turns of a killed server are taken over (`scripts/faults replicas`: 15.4 to 16.9)."""
    handover: float = 0.2
    """The same after SIGTERM (`scripts/faults replicas`)."""
    restart: float = 20.0
    """Seconds until a stopped server serves again: an assumption."""
    messages: float = 100_000.0
    """Messages a second of one Valkey: an assumption, below what its own benchmark reports for one core."""


@dataclass(frozen=True, slots=True)
class Load:
    """The people and the machines. ``seconds`` is the mean duration of a turn."""

    users: int = 100_000
    running: int = 5_000
    seconds: float = 20.0
    servers: int = 60
    cores: int = 1
    minutes: float = 30.0
    kills: int = 20
    seed: int = 1

    @property
    def arrivals(self) -> float:
        """Turns that begin in a second."""
        return self.running / self.seconds


@dataclass(slots=True)
class Server:
    """One server: ``work`` is the processor time that waits, ``turns`` those that run here."""

    up: bool = True
    back_at: float = 0.0
    work: float = 0.0
    sockets: int = 0
    turns: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Figures:
    """What a run showed. Delays are in seconds, one entry for each turn that began."""

    delays: list[float] = field(default_factory=list)
    begun: int = 0
    ended: int = 0
    takeovers: int = 0
    interruptions: list[float] = field(default_factory=list)
    """Seconds for which a turn's reader saw nothing because its server had gone."""
    busiest: float = 0.0
    """The largest share of its cores that a server used in one second."""
    mean_busy: list[float] = field(default_factory=list)
    waiting_work: float = 0.0
    """The longest queue of a server, in seconds of processor time."""
    waiting_commits: float = 0.0
    """The longest queue of the database, in commits."""
    commits: list[float] = field(default_factory=list)
    """Commits of each second."""
    messages: list[float] = field(default_factory=list)
    """Messages of live events of each second."""
    most_sockets: int = 0


class Simulation:
    """One run. Turns are numbers; ``_ends`` holds when each of them ends, if its server lives."""

    def __init__(self, load: Load, costs: Costs) -> None:
        self._load = load
        self._costs = costs
        self._random = Random(load.seed)
        self._servers = [Server(sockets=load.users // load.servers) for _ in range(load.servers)]
        self._ends: list[tuple[float, int]] = []
        self._end_of: dict[int, float] = {}
        self._server_of: dict[int, Server] = {}
        self._orphans: list[tuple[float, float, int]] = []
        """Turns without a server: when they may be taken over, when they lost it, and which."""
        self._reconnecting: Counter[int] = Counter()
        """Clients that will connect again, by step."""
        self._commits = 0.0
        self.figures = Figures()

    def run(self) -> Figures:
        """Run all steps and return the figures."""
        load = self._load
        end = load.minutes * 60
        kills = sorted(self._random.uniform(WARM_UP, end - 60) for _ in range(load.kills))
        restarts = [(end * (0.2 + 0.35 * number / load.servers), number) for number in range(load.servers)]
        # The restarts of all servers end at 0.55, the outage begins at 0.6, the rush at 0.7: one trouble at a time,
        # except the kills.
        outage = (end * 0.6, end * 0.6 + 10)
        second: list[float] = [0.0, 0.0, 0.0]
        for step in range(round(end / STEP)):
            now = step * STEP
            while kills and kills[0] <= now:
                kills.pop(0)
                self._stop(
                    self._random.choice([server for server in self._servers if server.up]), now, self._costs.lease
                )
            while restarts and restarts[0][0] <= now:
                self._stop(self._servers[restarts.pop(0)[1]], now, self._costs.handover)
            rush = 2.0 if end * 0.7 <= now < end * 0.7 + 120 else 1.0
            used, commits, messages = self._step(step, now, rush, away=outage[0] <= now < outage[1])
            second = [second[0] + used, second[1] + commits, second[2] + messages]
            if step % round(1 / STEP) == 0:
                if now > WARM_UP:
                    cores = load.cores * sum(server.up for server in self._servers)
                    self.figures.mean_busy.append(second[0] / cores)
                    self.figures.commits.append(second[1])
                    self.figures.messages.append(second[2])
                second = [0.0, 0.0, 0.0]
        return self.figures

    def _up(self) -> list[Server]:
        return [server for server in self._servers if server.up]

    def _stop(self, server: Server, now: float, free_after: float) -> None:
        """Stop a server: its turns wait for another one, and its clients connect elsewhere within five seconds."""
        if not server.up:
            return
        server.up, server.back_at, server.work = False, now + self._costs.restart, 0.0
        for turn in server.turns:
            heapq.heappush(self._orphans, (now + free_after, now, turn))
            self._server_of.pop(turn, None)
        server.turns.clear()
        for _ in range(server.sockets):
            self._reconnecting[round((now + self._random.uniform(0.2, 5)) / STEP)] += 1
        server.sockets = 0

    def _step(self, step: int, now: float, rush: float, *, away: bool) -> tuple[float, float, float]:
        """Advance by one step; return the processor time, the commits and the messages of live events."""
        load, costs = self._load, self._costs
        for server in self._servers:
            if not server.up and server.back_at <= now:
                server.up = True
        up = self._up()
        commits = len(up) * costs.idle_queries * STEP / 4  # a query that changes nothing costs no commit
        for _ in range(self._reconnecting.pop(step, 0)):
            # Of two random servers the one with fewer sockets: a balancer need not know all of them.
            server = min(self._random.sample(up, min(2, len(up))), key=lambda candidate: candidate.sockets)
            server.sockets += 1
            server.work += costs.reconnect
        while self._orphans and self._orphans[0][0] <= now and not away:
            _, lost_at, turn = heapq.heappop(self._orphans)
            self._assign(turn, self._random.choice(up))
            self._server_of[turn].work += costs.takeover + costs.turn
            self._later(turn, now)  # the model is asked again from the last stored step
            commits += costs.turn_commits / 2
            self.figures.takeovers += 1
            self.figures.interruptions.append(now - lost_at)
        for _ in range(self._arrivals(load.arrivals * rush * STEP)):
            server = self._random.choice(up)
            turn, self.figures.begun = self.figures.begun, self.figures.begun + 1
            self._assign(turn, server)
            server.work += costs.turn
            self._later(turn, now)
            commits += costs.turn_commits / 2
            if now > WARM_UP:
                waiting = self._commits / costs.commits + (10.0 if away else 0.0)
                self.figures.delays.append(server.work / load.cores + waiting)
        while self._ends and self._ends[0][0] <= now:
            at, turn = heapq.heappop(self._ends)
            # A turn that was taken over has a later end; the entry of its first server is still in the heap.
            if turn in self._server_of and self._end_of.get(turn) == at:
                self._server_of.pop(turn).turns.discard(turn)
                del self._end_of[turn]
                commits += costs.turn_commits / 2
                self.figures.ended += 1
        used = 0.0
        for server in up:
            rate = len(server.turns) * costs.deltas / load.seconds
            server.work += STEP * (rate * costs.delta + server.sockets * costs.socket)
            done = min(server.work, load.cores * STEP)
            server.work -= done
            used += done
            if now > WARM_UP:
                self.figures.waiting_work = max(self.figures.waiting_work, server.work)
            self.figures.busiest = max(self.figures.busiest, done / (load.cores * STEP) if now > WARM_UP else 0.0)
            self.figures.most_sockets = max(self.figures.most_sockets, server.sockets)
        self._commits += commits
        stored = 0.0 if away else min(self._commits, costs.commits * STEP)
        self._commits -= stored
        self.figures.waiting_commits = max(self.figures.waiting_commits, self._commits)
        # a turn is followed from another server than its own as often as a balancer without affinity has it so
        elsewhere = len(self._server_of) * (1 - 1 / len(up)) * costs.deltas / load.seconds * STEP
        return used, stored, elsewhere

    def _assign(self, turn: int, server: Server) -> None:
        server.turns.add(turn)
        self._server_of[turn] = server

    def _later(self, turn: int, now: float) -> None:
        """Let a turn end after a random time of the mean duration."""
        at = now + self._random.uniform(0.5, 1.5) * self._load.seconds
        self._end_of[turn] = at
        heapq.heappush(self._ends, (at, turn))

    def _arrivals(self, mean: float) -> int:
        """Return a random number of arrivals with this mean, as independent people make it."""
        count, left = 0, self._random.expovariate(1.0)
        while left < mean:
            count, left = count + 1, left + self._random.expovariate(1.0)
        return count

    @property
    def unfinished(self) -> int:
        """Turns that run or wait for a server."""
        return len(self._end_of)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies, 0 if there are none."""
    listed = sorted(values)
    return listed[min(len(listed) - 1, int(share * len(listed)))] if listed else 0.0


def saturations(figures: Figures, load: Load, costs: Costs) -> list[tuple[float, str, str]]:
    """Return how often the load could be multiplied until each part is full, what is full then, and what to add."""
    mean = sum(figures.mean_busy) / len(figures.mean_busy)
    commits = sum(figures.commits) / len(figures.commits)
    messages = sum(figures.messages) / len(figures.messages)
    memory = costs.socket_bytes * load.users / load.servers / 2**30
    return sorted(
        [
            (0.8 / mean, f"processors: {mean:.0%} on average", "servers; each takes its share of turns and sockets"),
            (
                0.8 * costs.commits / commits,
                f"commits: {commits:,.0f} a second of {costs.commits:,.0f}",
                "a second PostgreSQL, with a range of domains each",
            ),
            (
                0.8 * costs.messages / max(messages, 1),
                f"live events: {messages:,.0f} messages a second of {costs.messages:,.0f}",
                "a balancer that keeps a conversation on one server, or a Valkey for each range of domains",
            ),
            (1 / memory, f"memory of sockets: {memory:.2f} GiB a server", "servers, or memory"),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the simulation and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=(__doc__ or "").splitlines()[0])
    for name in ("users", "running", "servers", "cores", "kills", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Load(), name))
    parser.add_argument("--minutes", type=float, default=Load().minutes)
    load, costs = Load(**vars(parser.parse_args(arguments))), Costs()
    simulation = Simulation(load, costs)
    figures = simulation.run()
    print(f"{load.users:,} clients, {load.running:,} turns at once, {load.servers} servers of {load.cores} cores")
    lost = figures.begun - figures.ended - simulation.unfinished
    print(
        f"{figures.begun:,} turns began, {figures.ended:,} ended, {simulation.unfinished:,} are not over, {lost} lost"
    )
    delays = ", ".join(f"{name} {1000 * quantile(figures.delays, share):,.0f} ms" for name, share in QUANTILES)
    print(f"wait before a turn begins: {delays}")
    gaps = ", ".join(f"{name} {quantile(figures.interruptions, share):.1f} s" for name, share in QUANTILES)
    print(f"{figures.takeovers:,} takeovers; readers saw nothing for {gaps}")
    mean = sum(figures.mean_busy) / len(figures.mean_busy)
    print(f"processors: {mean:.0%} on average, {max(figures.mean_busy):.0%} in the busiest second of all")
    print(f"longest queue of a server: {figures.waiting_work:.2f} s of processor time")
    print(f"longest queue of the database: {figures.waiting_commits:,.0f} commits")
    print(f"commits a second: {quantile(figures.commits, 0.5):,.0f} (median), {max(figures.commits):,.0f} (most)")
    print(f"most sockets of a server: {figures.most_sockets:,}")
    for factor, full, cure in saturations(figures, load, costs):
        print(f"at {factor:.1f} times this load: {full}; then add {cure}")


QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("most", 1.0))

if __name__ == "__main__":
    main()
