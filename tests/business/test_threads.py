"""Threads by domain: their queues, the effect of a hanging thread, and the state after the last job."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import anyio
import anyio.from_thread
import pytest

from agentic_rag.base.errors import WorkspaceUnavailable
from agentic_rag.base.threads import DomainThreads, one_thread


@pytest.fixture
def disk() -> Iterator[Event]:
    """Until it is set, every job that waits for it hangs. At the end none does."""
    answers = Event()
    yield answers
    answers.set()


@contextmanager
def answer_at_end(disk: Event) -> Iterator[None]:
    """Let the disk answer at the end of the block, because changes are awaited."""
    try:
        yield
    finally:
        disk.set()


def wait_for(disk: Event) -> None:
    disk.wait()


async def until_idle(threads: DomainThreads) -> None:
    """Wait until no thread is in use. An abandoned thread reports its end by a call on the loop."""
    with anyio.fail_after(240):
        while threads.owners:
            await anyio.lowlevel.checkpoint()


async def test_each_domain_has_its_own_limit_of_threads(disk: Event) -> None:
    threads, started = DomainThreads(3), []

    def hang(number: int) -> bool:
        started.append(number)
        return disk.wait()

    async with anyio.create_task_group() as tasks:
        with answer_at_end(disk):
            for number in range(60):
                tasks.start_soon(threads.run, "one", hang, number)
            with anyio.fail_after(240):
                while len(started) < 3:
                    await anyio.lowlevel.checkpoint()
            assert await threads.run("other", sum, (1, 2)) == 3
            assert await threads.read("other", sum, (1, 2)) == 3
            assert sorted(started) == [0, 1, 2]
            assert threads.owners == {"one"}
    assert sorted(started) == list(range(60))
    assert not threads.owners


async def test_waiting_for_a_thread_can_be_cancelled_before_the_work_starts(disk: Event) -> None:
    results: list[int] = []
    threads = DomainThreads(1)
    async with anyio.create_task_group() as tasks:
        with answer_at_end(disk):
            tasks.start_soon(threads.run, "one", wait_for, disk)
            await anyio.wait_all_tasks_blocked()
            async with anyio.create_task_group() as leaving:
                leaving.start_soon(threads.run, "one", results.append, 1)
                leaving.start_soon(threads.read, "one", results.append, 2)
                await anyio.wait_all_tasks_blocked()
                leaving.cancel_scope.cancel()
        await threads.run("one", results.append, 3)
    assert results == [3]
    assert not threads.owners


async def test_waiting_too_long_for_a_thread_is_an_error_before_the_work_starts(disk: Event) -> None:
    results: list[int] = []
    threads = DomainThreads(1, patience=0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.run, "one", wait_for, disk)
        await anyio.wait_all_tasks_blocked()
        with answer_at_end(disk):
            for verb in (threads.run, threads.read):
                with pytest.raises(WorkspaceUnavailable) as error:
                    await verb("one", results.append, 1)
                assert (error.value.code, error.value.status, error.value.retryable) == (
                    "STORAGE_UNAVAILABLE",
                    503,
                    True,
                )
    assert results == []


async def test_a_hanging_read_delays_no_caller_and_occupies_its_place(disk: Event) -> None:
    threads, started = DomainThreads(2, patience=0.01), []

    def hang() -> bool:
        started.append(1)
        return disk.wait()

    while len(started) < 2:  # a job whose thread has not started in time occupies no slot
        with pytest.raises(WorkspaceUnavailable, match=r"a read did not end within 0\.01 s|2 other operations"):
            await threads.read("one", hang)
    with pytest.raises(WorkspaceUnavailable, match="2 earlier operations on it have not ended"):
        await threads.read("one", sum, (1, 2))
    assert threads.owners == {"one"}
    disk.set()
    await until_idle(threads)
    assert await threads.run("one", sum, (1, 2)) == 3


async def test_cancelling_abandons_a_read_and_waits_for_a_write(disk: Event) -> None:
    threads, finished = DomainThreads(), []

    async def change() -> None:
        try:
            await threads.run("one", wait_for, disk)
        finally:
            finished.append("change")

    async with anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as group:
            group.start_soon(threads.read, "one", wait_for, disk)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        tasks.start_soon(change)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
        with answer_at_end(disk):
            with anyio.CancelScope(shield=True):
                await anyio.wait_all_tasks_blocked()
            assert finished == []
    assert finished == ["change"]
    await until_idle(threads)


@pytest.mark.parametrize("error", [OSError, TimeoutError, StopIteration])
async def test_an_exception_of_the_work_is_raised_and_frees_its_place(error: type[Exception]) -> None:
    threads = DomainThreads(1)

    def fail() -> None:
        raise error("it")

    for verb in (threads.run, threads.read):
        with pytest.raises(RuntimeError if error is StopIteration else error):
            await verb("one", fail)
    assert not threads.owners


async def test_cancelled_callers_release_their_places() -> None:
    threads = DomainThreads(2)
    for verb in (threads.run, threads.read):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await verb("one", sum, (1, 2))
        assert scope.cancelled_caught
    await until_idle(threads)


async def test_each_owner_has_one_piece_of_work_in_the_queue(disk: Event) -> None:
    shared, order, started = one_thread(), list[str](), anyio.Event()

    def hold() -> None:
        anyio.from_thread.run_sync(started.set)
        wait_for(disk)

    with anyio.fail_after(240):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shared.run, "greedy", hold)
            await started.wait()
            with answer_at_end(disk):
                for _ in range(20):
                    tasks.start_soon(shared.run, "greedy", order.append, "greedy")
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(shared.run, "modest", order.append, "modest")
                await anyio.wait_all_tasks_blocked()
    assert order.index("modest") <= 1
    assert len(order) == 21
    await until_idle(shared)


async def test_a_caller_cancelled_before_a_thread_is_free_leaves_no_work(disk: Event) -> None:
    shared, started = one_thread(), anyio.Event()

    def hold() -> None:
        anyio.from_thread.run_sync(started.set)
        wait_for(disk)

    with anyio.fail_after(240):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shared.run, "greedy", hold)
            await started.wait()
            with answer_at_end(disk):
                with anyio.move_on_after(0) as scope:
                    await shared.run("modest", disk.set)
                assert scope.cancelled_caught
                assert shared.owners == {"greedy"}
    await until_idle(shared)
