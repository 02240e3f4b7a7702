"""Clients without a key flood the socket. A client with a key is refused nothing, and the server answers afterwards.

A small part of ``scripts/faults strangers``, on a separate server: with a key, every client needs one.
"""

from collections.abc import Iterator
from random import Random

import pytest

from tests.faults.strangers import KINDS, flood_beside_turns, make_key
from tests.faults.sweep import Rig, make_rig

SEED = 20
SOCKETS = 20


@pytest.fixture(scope="module")
def rig_and_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, str]]:
    with make_rig(tmp_path_factory.mktemp("strangers")) as rig:
        yield rig, make_key(rig)


ALWAYS, ANOTHER = Random(SEED).sample(sorted(KINDS), 2)


@pytest.mark.parametrize(
    "kind", [ALWAYS, pytest.param(ANOTHER, marks=pytest.mark.nightly("another kind of flood runs every time"))]
)
def test_a_client_with_a_key_is_served_during_a_flood(rig_and_key: tuple[Rig, str], kind: str) -> None:
    rig, key = rig_and_key
    figures = flood_beside_turns(rig, key, kind, seed=SEED, sockets=SOCKETS, turns=1)
    assert figures.turns == 1
    assert figures.opened >= SOCKETS
