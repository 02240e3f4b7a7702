"""A local package registry for the real clients npm and pip, with the interface of the public ones."""

import base64
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

SCRIPT = Path(__file__).parent / "servers" / "notes.js"


class PackageRegistry:
    """The published files by path. A test publishes as authors do. ``asked`` lists the requested paths."""

    def __init__(self) -> None:
        self._npm: dict[str, dict[str, Any]] = {}
        self._wheels: dict[str, dict[str, tuple[bytes, str]]] = {}
        self._files: dict[str, bytes] = {}
        self.requested_paths: list[str] = []
        self.url = ""

    def environment(self, folder: Path) -> dict[str, str]:
        """Return variables that make the clients use this registry and store files only in ``folder``."""
        return {
            "npm_config_registry": f"{self.url}/npm/",
            "npm_config_cache": str(folder / "npm-cache"),
            "npm_config_userconfig": str(folder / "no-npmrc"),
            "PIP_INDEX_URL": f"{self.url}/simple",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_CACHE_DIR": "1",
        }

    def publish_npm(self, name: str, version: str, script: str | None = None, old: bool = False, **fields: Any) -> None:
        """Publish a version whose program is ``script``. Publishing the same version again replaces it.

        ``old``: in the form before registries included sizes.
        """
        script = SCRIPT.read_text() if script is None else script
        manifest = {"name": name, "version": version, "license": "MIT", "bin": {name: "server.js"}, **fields}
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for file, text in {
                "package.json": json.dumps(manifest),
                "server.js": f"#!/usr/bin/env node\n{script}",
            }.items():
                info = tarfile.TarInfo(f"package/{file}")
                info.size = len(text.encode())
                archive.addfile(info, io.BytesIO(text.encode()))
        data = gzip.compress(buffer.getvalue(), mtime=0)
        place = f"/npm/{name}/-/{name}-{version}.tgz"
        self._files[place] = data
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        dist: dict[str, Any] = {"tarball": self.url + place, "integrity": integrity}
        if not old:
            dist |= {"unpackedSize": 4321, "fileCount": 2}
        versions = self._npm.setdefault(name, {"name": name, "versions": {}, "dist-tags": {}})
        versions["versions"][version] = {**manifest, "dist": dist}
        versions["dist-tags"]["latest"] = version

    def unpublish_npm(self, name: str, version: str) -> None:
        del self._npm[name]["versions"][version]

    def publish_wheel(self, name: str, version: str, *, yanked: str = "") -> None:
        """Publish a wheel with a program of its name. ``yanked`` is the author's reason for yanking it."""
        module = name.replace("-", "_")
        info = f"{module}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: MIT\n"
        files = {
            f"{module}/__init__.py": "def main():\n    print('no server')\n",
            f"{info}/METADATA": metadata,
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {module}:main\n",
        }
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for file, text in files.items():
                archive.writestr(file, text)
            archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"]))
        data = buffer.getvalue()
        place = f"/wheels/{module}-{version}-py3-none-any.whl"
        self._files[place] = data
        self._wheels.setdefault(name, {})[place] = (data, yanked)

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Return media type and body, or None if the path does not exist."""
        self.requested_paths.append(path)
        path = path.partition("?")[0].replace("%2f", "/")
        if path in self._files:
            return "application/octet-stream", self._files[path]
        name = path.removeprefix("/npm/")
        if name in self._npm:
            return "application/json", json.dumps(self._npm[name]).encode()
        name = path.removeprefix("/simple/").strip("/")
        if name in self._wheels:
            links = [
                f'<a href="{wheel_path}#sha256={hashlib.sha256(data).hexdigest()}"'
                f"{f' data-yanked={json.dumps(yanked)}' if yanked else ''}>{wheel_path.rpartition('/')[2]}</a>"
                for wheel_path, (data, yanked) in self._wheels[name].items()
            ]
            return "text/html", f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()
        return None


@contextmanager
def package_registry() -> Iterator[PackageRegistry]:
    """Serve a registry on a port of this machine until the block ends."""
    registry = PackageRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reply = registry.answer(self.path)
            kind, body = reply or ("application/json", b'{"error": "not found"}')
            self.send_response(200 if reply else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            """Keep the tests' output to themselves."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
