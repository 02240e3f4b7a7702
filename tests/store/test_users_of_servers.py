"""Users that several servers create at once, on each database."""

import anyio

from agentic_rag.access.keys import Access
from agentic_rag.access.people import People, Provided
from agentic_rag.base.errors import InvalidInput
from agentic_rag.store.database import Database

COUNT = 8


async def test_users_created_at_once_get_different_numbers(database: Database) -> None:
    people = People(database, Access(database))
    async with anyio.create_task_group() as tasks:
        for number in range(COUNT):
            tasks.start_soon(people.create, f"user{number}")
    assert sorted(user.number for user in await people.list_all()) == list(range(1, COUNT + 1))


async def test_one_of_two_users_of_the_same_name_is_refused(database: Database) -> None:
    people = People(database, Access(database))
    refusals: list[InvalidInput] = []

    async def create(name: str) -> None:
        try:
            await people.create(name)
        except InvalidInput as exc:
            refusals.append(exc)

    for number in range(COUNT):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(create, f"user{number}")
            tasks.start_soon(create, f"user{number}")
    assert len(refusals) == COUNT


async def test_the_first_requests_of_a_provided_user_create_the_user_once(database: Database) -> None:
    people = People(database, Access(database))
    provided = Provided("issuer|42", "mia", "Mia", operator=True, grants={})
    async with anyio.create_task_group() as tasks:
        for _ in range(COUNT):
            tasks.start_soon(people.take_in, provided)
    assert [user.id for user in await people.list_all()] == ["mia"]
