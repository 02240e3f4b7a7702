"""One server, model and tool server for all tests of this folder. Each test uses its own conversation."""

from collections.abc import Iterator

import pytest

from tests.faults.sweep import Rig, make_rig


@pytest.fixture(scope="package")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with make_rig(tmp_path_factory.mktemp("faults")) as running:
        yield running
