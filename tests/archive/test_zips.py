"""Zip files: the same members give the same bytes, and a foreign file list is loaded only within limits."""

import io
import struct
import zipfile
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_rag.archive.zips import ZipMember, ZipTooLarge, measure_zip, open_zip, write_zip

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0\\/"), min_size=1, max_size=20)


def members_of(contents: Mapping[str, bytes]) -> list[ZipMember]:
    return [ZipMember(name, len(data), lambda data=data: [data[:3], data[3:]]) for name, data in contents.items()]  # type: ignore[misc]


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(NAMES, st.binary(max_size=200), max_size=8))
def test_archive_members_are_read_back_and_the_size_is_computed_before_writing(contents: dict[str, bytes]) -> None:
    members = members_of(contents)
    content = b"".join(write_zip(members))
    assert len(content) == measure_zip(members)
    assert content == b"".join(write_zip(members))
    with open_zip(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        assert {info.filename: archive.read(info) for info in archive.infolist()} == contents
        assert {info.date_time for info in archive.infolist()} <= {(1980, 1, 1, 0, 0, 0)}
        assert {info.external_attr >> 16 for info in archive.infolist()} <= {0o100644}


def test_a_large_zip_is_streamed_in_bounded_pieces() -> None:
    piece = bytes(100_000)
    members = [ZipMember("large.bin", 50 * len(piece), lambda: [piece] * 50)]
    pieces = [*write_zip(members)]
    assert max(map(len, pieces)) < 400_000
    assert sum(map(len, pieces)) == measure_zip(members)


def test_the_computed_size_includes_zip64_extensions() -> None:
    """A zip64 member has 24 more bytes before its content and 8 after it, and 20 or 28 more in the list of files."""

    def measure(size: int) -> int:
        return measure_zip([ZipMember("a", size, list), ZipMember("b", 1, list)])

    end = 56 + 20
    assert measure(5 * 2**30) - 5 * 2**30 == measure(1) - 1 + (20 + 8) + (4 + 16) + (4 + 8) + end


def repeat_entry(times: int, stated_count: int) -> bytes:
    """Return a zip whose file list repeats one entry, and whose end record states another number of entries."""
    content = b"".join(write_zip(members_of({"a.md": b"text"})))
    start = content.index(b"PK\1\2")
    end = content.index(b"PK\5\6")
    entries = content[start:end] * times
    tail = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, stated_count, stated_count, len(entries), start, 0)
    return content[:start] + entries + tail


def test_a_zip_with_too_many_entries_is_refused_although_it_states_one() -> None:
    with pytest.raises(ZipTooLarge, match="more than 1000 files"):
        open_zip(io.BytesIO(repeat_entry(1_001, 1)), entries=1_000)
    with open_zip(io.BytesIO(repeat_entry(1_000, 1)), entries=1_000) as archive:
        assert len(archive.infolist()) == 1_000


def test_a_zip_directory_with_too_many_bytes_is_refused_by_either_end_record() -> None:
    plain = repeat_entry(2_000, 1)
    with pytest.raises(ZipTooLarge, match="more than 65600 bytes"):
        open_zip(io.BytesIO(plain), list_bytes=65_600)
    end = plain.index(b"PK\5\6")
    start = plain.index(b"PK\1\2")
    record = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, end - start, start)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, end, 1)
    small = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 46, start, 0)  # `zipfile` trusts the record before it
    with pytest.raises(ZipTooLarge):
        open_zip(io.BytesIO(plain[:end] + record + locator + small), list_bytes=65_600)


def test_zipfile_reports_an_invalid_zip() -> None:
    for data in (b"", b"hello", repeat_entry(1, 1)[:-4]):
        with pytest.raises(zipfile.BadZipFile):
            open_zip(io.BytesIO(data))
