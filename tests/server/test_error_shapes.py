"""A refusal on the path of another protocol has the form of that protocol, and ours."""

from pathlib import Path

import pytest
from ag_ui.core import RunErrorEvent

from agentic_rag.server.error_shapes import shape_error
from tests.server.rig import Rig

OURS = {"error": {"code": "FORBIDDEN", "message": "No.", "requestId": "req_1"}}


def test_other_paths_keep_our_own_form() -> None:
    assert shape_error("/api/conversations", OURS, 403) == OURS
    assert shape_error("/api/ag-uix/dom", OURS, 403) == OURS


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/api/ag-ui/dom_1", {"type": "RUN_ERROR", "message": "No.", "code": "FORBIDDEN"}),
        ("/api/ui-message/dom_1", {"type": "error", "errorText": "No."}),
    ],
)
def test_a_protocols_error_is_sent_beside_ours(path: str, fields: dict[str, str]) -> None:
    assert shape_error(path, OURS, 403) == {**fields, **OURS}


async def test_a_foreign_page_is_refused_before_any_route_in_the_dialect_of_its_path(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        for origin in ("http://127.0.0.1.evil.example", "https://evil.example/127.0.0.1", "null"):
            refusal = await rig.http.post("/api/ag-ui/dom_x", json={}, headers={"origin": origin})
            assert refusal.status_code == 403
            assert RunErrorEvent.model_validate(refusal.json()).code == "FORBIDDEN"
        unknown = await rig.http.get("/api/ui-message/dom_x/nothing/here")
        assert (unknown.status_code, unknown.json()["type"]) == (404, "error")
