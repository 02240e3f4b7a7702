"""Run the server alone: `python -m mcp_servers.promptx` on stdio, or `--http [--port N]` for streamable HTTP.

Owns the environment of the standalone server: PROMPTX_PROJECT_DIR (workspace, default the current folder),
PROMPTX_MEMORY_SCOPE (`domain`, the default, or `user:ID`) and PROMPTX_ALLOW_ROLE_WRITE (`1` adds the author tools).
"""

import argparse
import gc
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from mcp_servers.promptx.errors import PromptXError
from mcp_servers.promptx.memory import memory_folder
from mcp_servers.promptx.server import PromptXConfig, create_server


def config_from(environment: Mapping[str, str]) -> PromptXConfig:
    """Return the configuration of the standalone server.

    Raises:
        BadScope: PROMPTX_MEMORY_SCOPE is neither `domain` nor `user:ID`.
    """
    workspace = Path(environment.get("PROMPTX_PROJECT_DIR") or Path.cwd()).absolute()
    scope, _, user = (environment.get("PROMPTX_MEMORY_SCOPE") or "domain").partition(":")
    memory_folder(workspace, scope, user, "any")  # refuse a bad scope now, not at the first call
    allow = environment.get("PROMPTX_ALLOW_ROLE_WRITE") == "1"
    return PromptXConfig(workspace, scope=scope, user=user or None, role_write=allow)


def main() -> None:
    """Parse the command line and serve until the client disconnects or the process is stopped."""
    parser = argparse.ArgumentParser(prog="python -m mcp_servers.promptx", description="PromptX roles and memory")
    parser.add_argument("--http", action="store_true", help="serve streamable HTTP at /mcp instead of stdio")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    try:
        server = create_server(config_from(os.environ))
    except PromptXError as exc:
        sys.exit(f"promptx: {exc}")
    # Start-up objects live as long as the process. Unfrozen, each full garbage collection would walk them for 40 ms.
    gc.freeze()
    if options.http:
        server.run("streamable-http", host=options.host, port=options.port)
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
