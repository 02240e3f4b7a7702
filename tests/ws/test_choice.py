"""The dialect of a socket: chosen by subprotocol, else by its address, else by the operator's default."""

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


def test_the_subprotocol_precedes_the_address_which_precedes_the_operators_default() -> None:
    offered = ["ticket.x", "agentic-rag.klingon", "agentic-rag.native"]
    assert choose_dialect(offered, "klingon", "klingon") == ("native", "agentic-rag.native")
    assert choose_dialect(["ticket.x"], "native", "klingon") == ("native", None)
    assert choose_dialect([], None, "native") == ("native", None)


@pytest.mark.parametrize(("offered", "parameter"), [(["agentic-rag.klingon"], "native"), ([], "klingon"), ([], "")])
def test_an_unknown_dialect_is_refused_with_the_list_of_dialects(offered: list[str], parameter: str) -> None:
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


async def test_an_unknown_default_of_the_operator_prevents_the_start_by_name(tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path / "data", ws_dialect="klingon")
    with pytest.raises(BadConfiguration, match=r"AGENTIC_RAG_WS_DIALECT.*klingon.*native"):
        async with open_application(settings):
            pass
