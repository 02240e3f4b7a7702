"""The domain of conversations that name none."""

from pathlib import Path

import pytest

from tests.server.rig import Rig


async def test_a_conversation_without_a_domain_starts_in_the_default_domain(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Rig(tmp_path, default_domain="no-such") as rig:
        assert "there is no domain 'no-such' (AGENTIC_RAG_DEFAULT_DOMAIN)" in caplog.text
        domain = await rig.domain()
        status, code, message = await rig.refused("POST", "/api/conversations", {})
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert message.startswith("domainId: required: the default domain 'no-such'")
    async with Rig(tmp_path, default_domain=domain) as rig:
        assert (await rig.ok("POST", "/api/conversations", {}))["domainId"] == domain
