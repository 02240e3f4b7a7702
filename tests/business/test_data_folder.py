"""The ownership of the data folder, and how the command line finds its server."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentic_rag.base.startup_errors import BadConfiguration, DataFolderOwned
from agentic_rag.operations.data_folder import DataFolder, find_key, find_server, lent_files


def test_a_second_owner_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    first = DataFolder.own(folder)
    with pytest.raises(DataFolderOwned, match=r"process \d+ \(since 20"):
        DataFolder.own(folder)
    first.release()
    first.release()
    DataFolder.own(folder).release()


def test_a_server_is_discovered_only_while_its_process_owns_the_folder(tmp_path: Path) -> None:
    assert find_server(tmp_path) is None
    owner = DataFolder.own(tmp_path)
    assert find_server(tmp_path) is None
    owner.announce("http://127.0.0.1:1234", "a key")
    assert find_server(tmp_path) == "http://127.0.0.1:1234"
    assert find_key(tmp_path) == "a key"
    assert (tmp_path / "server.json").stat().st_mode & 0o777 == 0o600
    stale_text = (tmp_path / "server.json").read_text()
    owner.release()
    (tmp_path / "server.json").write_text(stale_text)  # the state after a kill -9
    assert find_server(tmp_path) is None


def test_a_data_folder_is_closed_to_other_users_even_if_it_was_open(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    old.chmod(0o755)
    for folder in (tmp_path / "new", old):
        DataFolder.own(folder).release()
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_hidden_file_that_is_open_to_others_is_named_with_its_dot(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / ".env").write_text("x")
    (tmp_path / ".env").chmod(0o644)
    assert lent_files(tmp_path) == [".env"]


def test_files_open_to_others_are_detected_and_closed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("not ours")
    outside.chmod(0o644)
    data = tmp_path / "data"
    (data / "mcp").mkdir(mode=0o700, parents=True)
    for name, mode in (("mcp/tool", 0o4700), ("mcp/open", 0o644), ("closed", 0o600)):
        (data / name).write_text("x")
        (data / name).chmod(mode)
    (data / "link").symlink_to(outside)
    data.chmod(0o750)
    lent = ["", "mcp/open", "mcp/tool"]
    assert lent_files(data) == lent
    assert lent_files(data, repair=True) == lent
    assert lent_files(data) == []
    assert (data / "mcp/tool").stat().st_mode & 0o7777 == 0o700
    assert outside.stat().st_mode & 0o777 == 0o644


def test_a_folder_that_cannot_be_created_is_bad_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadConfiguration, match="AGENTIC_RAG_DATA"):
        DataFolder.own(tmp_path / "file" / "data")


@pytest.mark.parametrize(
    "name",
    ["lock", "server.json", "secret.key", "agentic-rag.db", "agentic-rag.db-wal", "agentic-rag.db-shm"],
)
@pytest.mark.parametrize(("make", "kind"), [(os.mkdir, "folder"), (os.mkfifo, "pipe")])
def test_a_folder_in_place_of_a_file_is_a_one_line_error(
    tmp_path: Path, name: str, make: Callable[[Path], None], kind: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(BadConfiguration) as error:
        DataFolder.own(tmp_path)
    message = str(error.value)
    assert f"{tmp_path / name} is a {kind} and must be a file" in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["workspaces", "payloads", "index", "incoming", "mcp"])
def test_a_file_in_place_of_a_folder_is_a_one_line_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(BadConfiguration, match=f"{name} is a file and must be a folder"):
        DataFolder.own(tmp_path)
