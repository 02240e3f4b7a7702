"""Bundles are read as proposals.

Paths that lead outside, too much data and unbindable settings are refused before a write.
"""

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from agentic_rag.base.errors import PackageChanged, PackageProblem
from agentic_rag.tools.launch import bundles
from agentic_rag.tools.launch.catalogue import Package
from agentic_rag.tools.launch.packages import Packages
from agentic_rag.tools.launch.requests import propose_template
from tests.tools.bundles import MANIFEST, bundle, change_config, change_server


def list_folder(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.exists() else []


async def test_a_bundle_requests_a_command_line_and_names_its_secrets_without_values(tmp_path: Path) -> None:
    described = await Packages(tmp_path / "mcp").keep_bundle(bundle())
    assert (described.facts.name, described.facts.version, described.facts.license) == ("notes", "1.0.0", "MIT")
    assert described.args == ("--root=${FOLDER}", "${MODE}")
    assert dict(described.kinds) == {"FOLDER": "{path:workspace}", "MODE": "{text}"}
    assert (described.env, described.secrets) == (("NOTES_KEY",), ("NOTES_KEY",))
    assert dict(described.facts.fixed) == {"NOTES_MODE": "fixed"}
    assert described.start == ("node", "server/index.js")


async def test_a_folder_with_a_long_name_keeps_its_slot(tmp_path: Path) -> None:
    key = "folder_" * 12
    config = {key: {"type": "directory", "title": "Folder"}}
    args = ["${__dirname}/server/index.js", f"${{user_config.{key}}}"]
    manifest = {**change_config(args=args, env={}), "user_config": config}
    described = await Packages(tmp_path / "mcp").keep_bundle(bundle(manifest=manifest))
    assert propose_template(described.args, described.kinds) == ("{path:workspace}",)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PK but no zip", "cannot be read as a zip"),
        (bundle(files={"../out.js": b""}), "leads out"),
        (bundle(files={"/etc/cron.d/x": b""}), "leads out"),
        (bundle(files={"a\\..\\x": b""}), "leads out"),
        (bundle(files={"SERVER/index.js": b""}), "is in it twice"),
        (bundle(files={"s.js": b"", "s.js/y": b""}), "is a file, and the folder of"),
        (bundle(files={"a/S.js/y/z": b"", "a/s.js": b""}), "is a file, and the folder of"),
        (bundle(links={"lib": "/etc"}), "is a link"),
        (bundle(manifest=None), "has no manifest.json"),
        (bundle(manifest="[" * 100_000), "cannot be used"),
        (bundle(manifest="[]"), "has to be an object"),
        (bundle(manifest={**MANIFEST, "version": "1 || 2"}), "name and version"),
        (bundle(manifest=change_server(type="uv")), "is none of node, python, binary"),
        (bundle(manifest=change_server(entry_point="server/other.js")), "names no file of the bundle"),
        (bundle(manifest=change_config(command="sh")), "has to be node"),
        (bundle(manifest=change_config(args=["-e", "1"])), "the only file of the bundle that is run"),
        (bundle(manifest=change_config(args=["${__dirname}/server/index.js", "${user_config.api_key}"])), "is secret"),
        (bundle(manifest=change_config(args=["${__dirname}/server/index.js", "${HOME}/x"])), "that is declared"),
        (bundle(manifest=change_config(env={"NODE_OPTIONS": "-r x"})), "load or run another"),
        (bundle(manifest=change_config(env={"PYTHONPATH": "/tmp"})), "load or run another"),
        (bundle(manifest=change_config(env={"A": "x ${user_config.mode}"})), "nothing beside it"),
    ],
)
async def test_an_unusable_bundle_is_refused_and_leaves_nothing(tmp_path: Path, data: bytes, words: str) -> None:
    packages = Packages(tmp_path / "mcp")
    with pytest.raises(PackageProblem) as problem:
        await packages.keep_bundle(data)
    assert words in str(problem.value)
    assert not list_folder(tmp_path / "mcp" / "bundles")


def damage_file(data: bytes, name: str) -> bytes:
    """Return a bundle with other bytes in place of the compressed ones of a file."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        member = archive.getinfo(name)
    start = member.header_offset + 30 + len(name)
    return data[:start] + b"\xff" * member.compress_size + data[start + member.compress_size :]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (damage_file(bundle(), "manifest.json"), "cannot be read as a zip"),
        (damage_file(bundle(), "server/index.js"), "cannot be read as a zip"),
        (damage_file(bundle(files={"more.bin": bytes(range(256)) * 9}), "more.bin"), "cannot be read as a zip"),
        (bundle(files={"n" * 256: b""}), "is too long"),
        (bundle(files={"\u57ce" * 100: b""}), "is too long"),
        (bundle(files={"/".join(["folder"] * 200): b""}), "is too long"),
    ],
    ids=["manifest", "script", "another file", "name", "name in bytes", "path"],
)
async def test_a_bundle_that_cannot_be_unpacked_creates_no_request(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(PackageProblem, match=words):
        await Packages(tmp_path / "mcp").keep_bundle(data)
    assert not list_folder(tmp_path / "mcp" / "bundles")


def misstate_size(data: bytes, size: int) -> bytes:
    """Return a bundle that declares a wrong size for its last file."""
    content = bytearray(data)
    for mark, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        position = content.rindex(mark) + offset
        content[position : position + 4] = size.to_bytes(4, "little")
    return bytes(content)


async def test_a_zip_bomb_is_refused_by_its_stated_and_its_real_size(tmp_path: Path) -> None:
    packages = Packages(tmp_path / "mcp")
    with pytest.raises(PackageProblem, match="at most 20000 files and 256 MiB"):
        await packages.keep_bundle(misstate_size(bundle(files={"zeros": b"0"}), bundles.MAX_UNPACKED_BYTES))
    with pytest.raises(PackageProblem, match="cannot be read as a zip"):
        await packages.keep_bundle(misstate_size(bundle(files={"zeros": bytes(1 << 20)}), 10))
    assert not (tmp_path / "mcp" / "mcpb").exists()


async def test_an_archive_listing_beyond_the_memory_limit_is_not_read(tmp_path: Path) -> None:
    packages = Packages(tmp_path / "mcp")
    data = bytearray(bundle())
    data[-10:-6] = (5 << 20).to_bytes(4, "little")
    intact = bundle()
    for bad_data in (
        bytes(data),
        bytes(data[:-2]) + b"\x01\x00x",  # with a comment
        intact[:-22] + b"PK\x06\x07" + bytes(16) + intact[-22:],  # a list of any size
        intact[:-1],
        b"PK\x05\x06",
    ):
        with pytest.raises(PackageProblem, match="cannot be read as a zip"):
            await packages.keep_bundle(bad_data)
    data_with_comment = intact[:-2] + (9).to_bytes(2, "little") + b"signature"
    assert (await packages.keep_bundle(data_with_comment)).facts.name == "notes"


async def test_only_the_bundle_with_the_approved_hash_is_installed(tmp_path: Path) -> None:
    packages = Packages(tmp_path / "mcp")
    facts = (await packages.keep_bundle(bundle())).facts
    package = Package("mcpb", facts.name, facts.version, "", facts.integrity)
    path = packages.bundle_of(package)
    path.write_bytes(bundle(files={"more.js": b"1"}))
    with pytest.raises(PackageProblem, match="not the one that was approved"):
        await packages.install(package)
    await packages.keep_bundle(bundle())
    installed = await packages.install(package)
    assert installed.args == (f"{installed.tree}/server/index.js",)
    other_package = Package("mcpb", facts.name, facts.version, "", "sha256-0")
    with pytest.raises(PackageChanged, match="differ from the approved ones"):
        packages.find_installed(other_package)
    (tmp_path / "mcp" / "mcpb" / "notes@1.0.0" / "tree" / "server" / "index.js").write_text("changed")
    with pytest.raises(PackageChanged, match="were changed"):
        packages.find_installed(package)


@pytest.mark.parametrize(
    ("kind", "entry", "program", "before"),
    [("python", "main.py", "python3", ("-B",)), ("binary", "run", "run", ())],
)
async def test_python_and_programs_of_a_bundle_are_started_from_it(
    tmp_path: Path, kind: str, entry: str, program: str, before: tuple[str, ...]
) -> None:
    server: dict[str, Any] = {
        "type": kind,
        "entry_point": entry,
        "mcp_config": {"env": {"PYTHONPATH": "${__dirname}/lib"}},
    }
    packages = Packages(tmp_path / "mcp")
    described = await packages.keep_bundle(bundle({**MANIFEST, "server": server}, {entry: b"#!/bin/sh\n"}))
    assert dict(described.facts.fixed) == {"PYTHONPATH": "{tree}/lib"}
    facts = described.facts
    installed = await packages.install(Package("mcpb", facts.name, facts.version, "", facts.integrity))
    assert Path(installed.executable).name.startswith(program)
    assert installed.args[: len(before)] == before
    assert zipfile.is_zipfile(packages.bundle_of(Package("mcpb", "", "", "", facts.integrity)))
