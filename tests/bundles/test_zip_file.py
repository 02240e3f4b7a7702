"""The zip that is written here is one that any library reads, also beyond four gigabytes and 65 535 members."""

import io
import zipfile
import zlib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_rag.bundles.zip_file import StoredMember, directory_of, size_of

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0\\/"), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES, st.binary(max_size=200), max_size=8))
def test_any_library_reads_what_is_written(contents: dict[str, bytes]) -> None:
    members = [StoredMember(name, len(data), zlib.crc32(data)) for name, data in contents.items()]
    directory = directory_of(members)
    whole = b"".join(each.head + contents[each.path] for each in members) + directory
    assert len(whole) == size_of(members, directory)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        assert archive.testzip() is None
        assert {info.filename: archive.read(info) for info in archive.infolist()} == contents
        assert all(info.date_time == (1980, 1, 1, 0, 0, 0) for info in archive.infolist())


def test_a_member_of_five_gigabytes_and_what_comes_after_it(tmp_path: Path) -> None:
    small = b"after it"
    members = [StoredMember("large.bin", 5 * 2**30, 0), StoredMember("small.txt", len(small), zlib.crc32(small))]
    path = tmp_path / "large.zip"
    directory = directory_of(members)
    with path.open("wb") as file:  # with a hole in it
        file.write(members[0].head)
        file.seek(members[0].size, io.SEEK_CUR)
        file.write(members[1].head + small + directory)
    assert path.stat().st_size == size_of(members, directory)
    with zipfile.ZipFile(path) as archive:
        assert [info.file_size for info in archive.infolist()] == [5 * 2**30, len(small)]
        assert archive.read("small.txt") == small


def test_seventy_thousand_members() -> None:
    members = [StoredMember(f"{number}", 0, 0) for number in range(70_000)]
    whole = b"".join(each.head for each in members) + directory_of(members)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        assert len(archive.infolist()) == 70_000
        assert archive.read("69999") == b""
