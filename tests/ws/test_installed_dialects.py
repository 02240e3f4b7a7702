"""A dialect from another distribution."""

import os
import subprocess
import sys
from pathlib import Path

MODULE = """
class Shout:
    name = "shout"
    headers = ()
    needs_start = False
    ended = False

    def sse(self, event):
        return b"data: " + event.type.upper().encode() + b"\\n\\n"

    def frames(self, event):
        return (event.type.upper().encode(),)
"""

PROGRAM = """
from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.events import Text
from agentic_rag.runtime.log.encoder import encode
from agentic_rag.server.dialects import choose_dialect, dialect_names, get_dialect

event = encode(Text("hello"), conversation_id="conv_1", turn_id="turn_1", seq=1, ts="t")
print(dialect_names()[0], dialect_names()[-1])
print(get_dialect("shout").frames(event), get_dialect("shout").sse(event))
print(choose_dialect(["agentic-rag.shout"]))
print(get_dialect("native").frames(event)[0] is event.data, get_dialect("shout") is get_dialect("shout"))
try:
    get_dialect("klingon")
except InvalidInput as exc:
    print(exc)
"""


def test_an_installed_distribution_adds_a_dialect_and_replaces_none(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(MODULE)
    info = tmp_path / "loud-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[agentic_rag.dialects]\nshout = loud:Shout\nnative = loud:Shout\nbroken = loud.nothing:Missing\n"
    )
    root = Path(__file__).parent.parent.parent
    path = os.pathsep.join([str(tmp_path), str(root)])
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    *lines, refusal = child.stdout.splitlines()
    assert lines == [
        "native shout",
        r"(b'TEXT',) b'data: TEXT\n\n'",
        "('shout', 'agentic-rag.shout')",
        "True False",
    ]
    assert refusal.startswith("dialect: 'klingon' is not known. Known: native,")
    assert refusal.endswith(", shout.")
    assert "dialect broken (loud.nothing:Missing) cannot be loaded" in child.stderr
