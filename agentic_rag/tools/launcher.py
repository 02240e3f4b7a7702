"""The first program of every child: sets limits, binds the child's life to ours, becomes the server.

Owns what must happen between fork and exec. Run as a script by ``python -I -S``, so that no Python code runs in
a fork of the many-threaded server (which may deadlock on a lock another thread held). Knows nothing of this
package and must import only the standard library.

Arguments: our process id, rlimits as JSON ``[[name, value], …]``, absolute executable, its arguments.
"""

import ctypes
import json
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
"""From ``linux/prctl.h``: the signal a process gets when its parent dies; it survives exec."""


def main() -> None:
    parent, limits, executable, *args = sys.argv[1:]
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):  # it died before the signal was set
        raise SystemExit(1)
    for name, value in json.loads(limits):
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (limit, limit))
    os.execve(executable, [executable, *args], os.environ)


if __name__ == "__main__":
    main()
