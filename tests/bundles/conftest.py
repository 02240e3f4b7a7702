"""What a test makes is as closed to others as what the server writes."""

from collections.abc import Iterator

import pytest

from tests.backup.making import closed_files


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    with closed_files():
        yield
