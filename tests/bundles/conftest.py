"""Fixtures of the bundle tests: a umask that closes files to other users, as the server's does."""

from collections.abc import Iterator

import pytest

from tests.backup.making import closed_files


@pytest.fixture(autouse=True)
def close_files() -> Iterator[None]:
    with closed_files():
        yield
