"""Which dialect a socket speaks: by subprotocol, else by its address, else as the operator decided."""

from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from agentic_rag.app.application import open_application
from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.settings import load_settings
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.server.dialects import choose_dialect
from tests.ws.memory import Desk
from tests.ws.serving import application, serving


def test_a_subprotocol_counts_before_the_address_and_the_address_before_the_operators_default() -> None:
    offered = ["ticket.x", "agentic-rag.klingon", "agentic-rag.native"]
    assert choose_dialect(offered, "klingon", "klingon") == ("native", "agentic-rag.native")
    assert choose_dialect(["ticket.x"], "native", "klingon") == ("native", None)
    assert choose_dialect([], None, "native") == ("native", None)


@pytest.mark.parametrize(("offered", "parameter"), [(["agentic-rag.klingon"], "native"), ([], "klingon"), ([], "")])
def test_a_dialect_that_is_asked_for_and_not_known_is_refused_by_naming_the_known_ones(
    offered: list[str], parameter: str
) -> None:
    with pytest.raises(InvalidInput, match="Known: native"):
        choose_dialect(offered, parameter)


async def test_a_client_that_offers_compression_gets_none() -> None:
    desk = Desk()
    async with (
        serving(application(desk, desk)) as address,
        connect(f"ws://{address}/ws", compression="deflate", proxy=None) as connection,
    ):
        assert connection.protocol.extensions == []
        await connection.send('{"type": "ping"}')
        assert await connection.recv() == '{"type":"pong"}'


async def test_an_operators_default_that_does_not_exist_stops_the_start_with_its_name(tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path / "data", ws_dialect="klingon")
    with pytest.raises(BadConfiguration, match=r"AGENTIC_RAG_WS_DIALECT.*klingon.*native"):
        async with open_application(settings):
            pass
