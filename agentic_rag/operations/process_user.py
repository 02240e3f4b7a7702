"""The user a serving process runs as: root with a warning, or the user that ``serve --user`` names.

A server that runs as root drops to another id for everything that handles strangers' data: see
``tools.launch.launcher`` and ``documents.fork_server``.
"""

import logging
import os
import pwd
import sys
from pathlib import Path

import agentic_rag
from agentic_rag.base.settings import Settings
from agentic_rag.base.startup_errors import BadConfiguration

log = logging.getLogger(__name__)


def is_root() -> bool:
    """Return whether this process runs as root."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def warn_if_root() -> None:
    """Log one warning if this process runs as root."""
    if is_root():
        log.warning(
            "serving as root: document readers, page renderers, MCP programs and package clients run as an "
            "unprivileged user; `serve --user NAME` runs the server itself as NAME"
        )


def become_user(name: str, settings: Settings) -> None:
    """Switch this process to another user of this machine. A missing data folder is created for that user.

    Raises:
        BadConfiguration: this process is not root, the user does not exist, or the user may not read this installation
            or use the data folder.
    """
    if not is_root():
        raise BadConfiguration("user", f"only root can serve as another user; this is {os.geteuid()}")
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise BadConfiguration("user", f"there is no user {name!r} on this machine (useradd --system {name})") from None
    folders = {settings.data.absolute(), settings.own.absolute()}
    for folder in folders:
        if not folder.exists():
            folder.mkdir(mode=0o700, parents=True)
            os.chown(folder, user.pw_uid, user.pw_gid)
        elif folder.stat().st_uid != user.pw_uid:
            raise BadConfiguration("user", f"{folder} belongs to another user: chown -R {name} {folder}")
    os.initgroups(name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    os.environ.update(HOME=user.pw_dir, USER=name, LOGNAME=name)
    for place in (Path(sys.executable), Path(agentic_rag.__file__).parent):
        if not os.access(place, os.R_OK | os.X_OK):
            problem = f"{name} may not read {place}, where this program is installed; install it below /opt or /srv"
            raise BadConfiguration("user", problem)
    for folder in folders:
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise BadConfiguration("user", f"{name} cannot reach {folder}; choose another folder with --data")
