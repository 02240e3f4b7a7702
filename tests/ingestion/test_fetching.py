"""The default embedder is downloaded automatically, and existing documents get their vectors while serving."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.retriever.tiny_model import write_model
from tests.server.test_cli_knowledge import hub


def run_fetching_user(folder: Path, endpoint: str) -> dict[str, Any]:
    variables = os.environ | {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "tests.ingestion.fetching_user", str(folder)]
    process = subprocess.run(command, env=variables | {"NO_PROXY": "127.0.0.1"}, capture_output=True, timeout=120)
    assert process.returncode == 0, process.stderr.decode()
    report: dict[str, Any] = json.loads(process.stdout)
    return report


@pytest.mark.nightly("test_cli_knowledge.py fetches a model and test_dense.py adds its vectors every time")
def test_the_default_embedder_is_downloaded_after_failures_and_joins_while_serving(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    shutil.move(source / "model.onnx", source / "model_optimized.onnx")
    requests: list[str] = []
    with hub(source, requests, failures=1) as url:
        report = run_fetching_user(tmp_path, url)
    assert report["came"] is True
    states = [state for state, _ in report["states"]]
    assert states[0] == "lexical"
    assert "fetching" in states
    assert any("could not be fetched" in reason for _, reason in report["states"] if reason)
    assert report["vector"] == 16
    assert report["before"] == ["indexed", "none"], "no document waits for a download"
    assert (report["mode"], report["hits"]) == ("hybrid", 1)
    assert report["embedder"]["state"] == "ready"
    assert "mode" not in report["embedder"]
    assert report["forbidden"] == [False, "lexical"]
