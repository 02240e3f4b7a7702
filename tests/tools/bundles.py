"""Valid and invalid bundles (``.mcpb``)."""

import io
import json
import stat
import zipfile
from collections.abc import Mapping
from typing import Any

from tests.tools.registry import SCRIPT

MANIFEST: dict[str, Any] = {
    "manifest_version": "0.3",
    "name": "Notes",
    "version": "1.0.0",
    "description": "Notes for everybody.",
    "author": {"name": "Ann"},
    "license": "MIT",
    "server": {
        "type": "node",
        "entry_point": "server/index.js",
        "mcp_config": {
            "command": "node",
            "args": ["${__dirname}/server/index.js", "--root=${user_config.folder}", "${user_config.mode}"],
            "env": {"NOTES_KEY": "${user_config.api_key}", "NOTES_MODE": "fixed"},
        },
    },
    "user_config": {
        "folder": {"type": "directory", "title": "Folder", "required": True},
        "mode": {"type": "string", "title": "Mode", "default": "plain"},
        "api_key": {"type": "string", "title": "Key", "sensitive": True},
    },
}


def change_server(**fields: Any) -> dict[str, Any]:
    """Return the manifest with other fields of its ``server``."""
    return {**MANIFEST, "server": {**MANIFEST["server"], **fields}}


def change_config(**fields: Any) -> dict[str, Any]:
    """Return the manifest with other fields of its ``mcp_config``."""
    return change_server(mcp_config={**MANIFEST["server"]["mcp_config"], **fields})


def bundle(
    manifest: object = MANIFEST,
    files: Mapping[str, bytes] | None = None,
    links: Mapping[str, str] | None = None,
) -> bytes:
    """Return a bundle: its manifest, the server's script, and more files or links."""
    buffer = io.BytesIO()
    members: dict[str, str | bytes] = {"server/index.js": SCRIPT.read_text(), **(files or {})}
    if manifest is not None:
        members = {"manifest.json": manifest if isinstance(manifest, str) else json.dumps(manifest), **members}
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():  # with a fixed date, because equal bundles must have equal bytes
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        for name, target in (links or {}).items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, target)
    return buffer.getvalue()
