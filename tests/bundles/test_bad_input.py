"""Foreign bundles: each unusable one is refused with its error code, and leaves nothing behind."""

import io
import json
import stat
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.bundle_errors import BundleRefused
from agentic_rag.base.errors import AgenticRagError, StorageFull
from agentic_rag.bundles.form import check_paths, portable_names, problem_of
from agentic_rag.bundles.receiving import Bounds, unpack
from tests.server.rig import Rig

from .making import ZIP, bring, export, members_of, pack, plain

Spoil = Callable[[], bytes]
NOTE = b"# A\n\nText.\n"


def with_member(name: str) -> Spoil:
    return lambda: pack({**plain(), name: NOTE})


def with_two_members(name: str, second_name: str) -> Spoil:
    return lambda: pack({**plain(), name: NOTE, second_name: NOTE + b"more\n"})


def with_mode(mode: int) -> bytes:
    data = members_of(pack({**plain(), "documents/a.md": NOTE}))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in data.items():
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, (mode if name == "documents/a.md" else stat.S_IFREG) << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def with_doubled_member() -> bytes:
    data = members_of(pack({**plain(), "documents/a.md": NOTE}))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in [*data.items(), ("documents/a.md", NOTE)]:
            archive.writestr(name, content)
    return buffer.getvalue()


def with_nul() -> bytes:
    return pack({**plain(), "documents/aXb.md": NOTE}).replace(b"documents/aXb.md", b"documents/a\0b.md")


def with_false_listing() -> bytes:
    return pack({**plain(), "documents/a.md": NOTE}, listed={**plain(), "documents/a.md": NOTE[:-1] + b"!"})


def with_unlisted_member() -> bytes:
    return pack({**plain(), "documents/a.md": NOTE}, listed=plain())


def with_missing_member() -> bytes:
    return pack(plain(), listed={**plain(), "documents/a.md": NOTE})


def with_cut_end() -> bytes:
    return pack({**plain(), "documents/a.md": NOTE * 50})[:-40]


def bomb() -> bytes:
    return pack({**plain(), "documents/a.md": bytes(40 * 2**20)})


def large_text() -> bytes:
    return pack({**plain(), "prompt/a.md": b"a b\n" * 2**19})


def with_too_many_entries() -> bytes:
    """Return a zip with 60 000 entries in its list of files, whose end states the number of its members."""
    data = pack(plain())
    start, end_at = data.index(b"PK\1\2"), data.rindex(b"PK\5\6")
    entries = data[start : data.index(b"PK\1\2", start + 4)] * 60_000
    end = struct.unpack("<4s4H2IH", data[end_at : end_at + 22])
    return data[:start] + entries + struct.pack("<4s4H2IH", *end[:5], len(entries), start, 0)


def with_encryption_flag() -> bytes:
    data = bytearray(pack(plain()))
    for mark, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        place = -1
        while (place := data.find(mark, place + 1)) >= 0:
            data[place + offset] |= 1
    return bytes(data)


def document(name: str, value: object) -> Spoil:
    return lambda: pack({**plain(), name: json.dumps(value).encode()})


BAD: dict[str, tuple[str, Spoil]] = {
    "a name that leads up": ("BUNDLE_REFUSED", with_member("documents/../../x.md")),
    "a name that leads up by a part": ("BUNDLE_REFUSED", with_member("../domain.md")),
    "an absolute name": ("BUNDLE_REFUSED", with_member("/etc/cron.d/x")),
    "a drive's name": ("BUNDLE_REFUSED", with_member("C:/x.md")),
    "a backslash": ("BUNDLE_REFUSED", with_member("documents\\..\\x.md")),
    "a link": ("BUNDLE_REFUSED", lambda: with_mode(stat.S_IFLNK)),
    "a device": ("BUNDLE_REFUSED", lambda: with_mode(stat.S_IFCHR)),
    "a pipe": ("BUNDLE_REFUSED", lambda: with_mode(stat.S_IFIFO)),
    "a name twice": ("BUNDLE_REFUSED", with_doubled_member),
    "names that differ in case": ("BUNDLE_REFUSED", with_two_members("documents/a.md", "documents/A.md")),
    "names that differ in form": ("BUNDLE_REFUSED", with_two_members("documents/\u00e9.md", "documents/e\u0301.md")),
    "a file that is a folder": ("BUNDLE_REFUSED", with_two_members("documents/a", "documents/a/b.md")),
    "NUL in a name": ("BUNDLE_REFUSED", with_nul),
    "a line end in a name": ("BUNDLE_REFUSED", with_member("documents/a\nb.md")),
    "a name that turns text around": ("BUNDLE_REFUSED", with_member("documents/a\u202egpj.md")),
    "a hidden name": ("BUNDLE_REFUSED", with_member("documents/.ssh/key")),
    "a name too long": ("BUNDLE_REFUSED", with_member(f"documents/{'a' * 300}.md")),
    "a member of no kind": ("BUNDLE_REFUSED", with_member("workspace/x.md")),
    "a role that is none": ("BUNDLE_REFUSED", with_member("roles/run.sh")),
    "a ratio": ("BUNDLE_TOO_LARGE", bomb),
    "a large text": ("BUNDLE_TOO_LARGE", large_text),
    "too many members": ("BUNDLE_TOO_LARGE", with_too_many_entries),
    "a cut file": ("BUNDLE_DAMAGED", with_cut_end),
    "other bytes": ("BUNDLE_DAMAGED", with_false_listing),
    "what no manifest lists": ("BUNDLE_DAMAGED", with_unlisted_member),
    "what is not there": ("BUNDLE_DAMAGED", with_missing_member),
    "no zip": ("BUNDLE_DAMAGED", lambda: b"hello"),
    "nothing": ("BUNDLE_DAMAGED", lambda: b""),
    "another zip": ("BUNDLE_DAMAGED", lambda: pack(plain(), format="something else")),
    "a newer form": ("BUNDLE_TOO_NEW", lambda: pack(plain(), version=2)),
    "a password": ("BUNDLE_REFUSED", with_encryption_flag),
    "no settings": ("BUNDLE_DAMAGED", document("domain.json", {"name": "x"})),
    "more than settings": (
        "BUNDLE_DAMAGED",
        document("domain.json", {"name": "x", "description": "", "settings": {}, "id": "dom_1"}),
    ),
    "servers among settings": (
        "BUNDLE_DAMAGED",
        document("domain.json", {"name": "x", "description": "", "settings": {"mcpServers": {}}}),
    ),
    "an unknown setting": ("VALIDATION_ERROR", lambda: pack(plain(nonsense=1))),
    "a blank name": ("VALIDATION_ERROR", lambda: pack(plain(""))),
    "no servers": ("BUNDLE_DAMAGED", document("mcp-servers.json", [])),
    "a server of ours": (
        "MCP_SERVER_RESERVED",
        lambda: pack(plain(servers={"promptx": {"type": "http", "url": "https://x.example/mcp"}})),
    ),
    "a memory that is none": ("BUNDLE_DAMAGED", document("memories/law.json", {"engrams": [1], "frequencies": {}})),
    "an odd memory": (
        "BUNDLE_DAMAGED",
        document(
            "memories/law.json",
            {
                "engrams": [
                    {"id": "1", "content": "x", "type": "ODD", "strength": 1, "createdAt": 1, "cues": ["a", "b"]}
                ],
                "frequencies": {},
            },
        ),
    ),
    "a levelled JSON": (
        "BUNDLE_DAMAGED",
        lambda: pack({**plain(), "domain.json": b'{"a":' * 200 + b"1" + b"}" * 200}),
    ),
}


async def test_each_bad_bundle_is_refused_with_its_code_and_leaves_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        before = sorted(path.name for path in rig.settings.workspaces.iterdir())
        for case, (code, spoil) in BAD.items():
            data = await anyio.to_thread.run_sync(spoil)
            answer = await rig.refused("POST", "/api/bundles", content=data, headers=ZIP)
            assert answer[1] == code, (case, answer)
            assert not list((rig.settings.data / "imports").iterdir()), case
        assert (await rig.ok("GET", "/api/domains"))["items"] == []
        assert sorted(path.name for path in rig.settings.workspaces.iterdir()) == before


async def test_a_bad_bundle_changes_nothing_of_a_domain(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        before = await export(rig, domain)
        for case in ("a name that leads up", "a link", "a cut file", "other bytes", "a newer form", "an odd memory"):
            code, spoil = BAD[case]
            if case == "an odd memory":
                continue
            answer = await rig.refused("POST", f"/api/domains/{domain}/bundle", content=spoil(), headers=ZIP)
            assert answer[1] == code, case
        assert await export(rig, domain) == before


async def test_a_zip_in_a_bundle_stays_a_file(tmp_path: Path) -> None:
    inner = bomb()
    async with Rig(tmp_path) as rig:
        imported = await bring(rig, pack({**plain(), "documents/more.zip": inner}))
        stored_file = rig.settings.workspaces / imported["domainId"] / "documents" / "more.zip"
        assert stored_file.read_bytes() == inner


async def test_quotas_and_size_limits_apply_to_bundles(tmp_path: Path) -> None:
    async with Rig(tmp_path, quota_documents=2, max_upload_bytes=1000) as rig:
        members = {**plain(), **{f"documents/{number}.md": NOTE + b"x" * number for number in range(3)}}
        answer = await rig.refused("POST", "/api/bundles", content=pack(members), headers=ZIP)
        assert answer[:2] == (409, "QUOTA_EXCEEDED")
        domain = await rig.domain()
        answer = await rig.refused("POST", f"/api/domains/{domain}/bundle", content=pack(members), headers=ZIP)
        assert answer[:2] == (409, "QUOTA_EXCEEDED")
        large = pack({**plain(), "documents/a.md": b"ab " * 400})
        answer = await rig.refused("POST", "/api/bundles", content=large, headers=ZIP)
        assert answer[:2] == (413, "DOCUMENT_TOO_LARGE")


async def test_a_bundle_import_on_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path, disk_reserve=2**60) as rig:
        answer = await rig.refused("POST", "/api/bundles", content=pack(plain()), headers=ZIP)
        assert answer[:2] == (507, "STORAGE_FULL")
        assert not list((rig.settings.data / "imports").iterdir())
        assert (await rig.ok("GET", "/api/domains"))["items"] == []


def test_a_disk_that_fills_up_during_an_unpacking_is_the_reason(tmp_path: Path) -> None:
    source = tmp_path / "b.zip"
    source.write_bytes(pack({**plain(), "documents/a.md": NOTE}))
    rooms = iter([None, None, StorageFull("no space")])

    def check() -> None:
        if (full := next(rooms)) is not None:
            raise full

    with pytest.raises(StorageFull):
        unpack(source, tmp_path / "files", Bounds(10**6, 10**6, check))


def test_a_bundle_with_a_changed_byte_is_refused_or_equal(tmp_path: Path) -> None:
    data = pack({**plain("Law", language="de"), "documents/a.md": NOTE, "prompt/a.md": b"Be calm.\n"})
    source = tmp_path / "b.zip"

    def read(content: bytes) -> dict[str, bytes] | None:
        source.write_bytes(content)
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            try:
                unpack(source, Path(folder), Bounds(10**6, 10**7, lambda: None))
            except AgenticRagError:
                return None
            return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*.*")}

    contents = read(data)
    assert contents is not None
    refusals = 0
    for offset in range(0, len(data), 3):
        spoilt = bytearray(data)
        spoilt[offset] ^= 0x10 << (offset % 3)
        spoilt_contents = read(bytes(spoilt))
        assert spoilt_contents in (None, contents), offset
        refusals += spoilt_contents is None
    assert refusals > len(data) // 8
    assert all(read(data[:size]) is None for size in range(0, len(data), 7))


@given(st.lists(st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=40), max_size=6))
def test_every_document_name_has_a_portable_form(names: list[str]) -> None:
    file_names = {name for name in names if name not in (".", "..")}
    new_names = portable_names(file_names)
    assert new_names.keys() == file_names
    check_paths(f"documents/{name}" for name in new_names.values())
    renamed = portable_names(new_names.values())
    assert {renamed[name] for name in new_names.values()} == set(new_names.values())


@given(st.text(max_size=60))
def test_no_accepted_name_leaves_its_folder(name: str) -> None:
    path = f"documents/{name}"
    if problem_of(path) is None:
        assert ".." not in path.split("/")
        assert Path("/base", path).resolve().is_relative_to("/base/documents")
    else:
        with pytest.raises(BundleRefused):
            check_paths([path])
