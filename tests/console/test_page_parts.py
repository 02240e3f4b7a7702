"""Parts of the pages that need no browser: JSON with positions, and the positions of a recall's cues."""

import json
from itertools import combinations
from typing import Any

import anyio

from tests.node import CLIENTS, PATIENCE, node

GOOD = (
    '{"a": [1, -2.5e3, true, null, "x\\u00e9\\n"], "b": {"": {}}}',
    "  [ ]\n",
    '"text"',
    '{"__proto__": {"x": 1}, "constructor": 2}',
)
BAD = {
    '{"a": 1,}': ("comma", 1, 9),
    '{"a": 1\n "b": 2}': ("between", 2, 2),
    '{"a" 1}': ("colon", 1, 6),
    "{a: 1}": ("key", 1, 2),
    "{\"a\": 'x'}": ("quote", 1, 7),
    '{"a": "x\n"}': ("string", 1, 7),
    '{"a": 1}\n}': ("after", 2, 1),
    '{"a": [1,\n 2': ("end", 2, 3),
    '{"a": 1, "a": 2}': ("twice", 1, 10),
    '{\n  // why\n  "a": 1}': ("comment", 2, 3),
    '{"a": tru}': ("value", 1, 7),
    '{"a": "\\x"}': ("escape", 1, 8),
    "": ("end", 1, 1),
    "[" * 100: ("deep", 1, 65),
}
CONFIG = '{"mcpServers": {\n  "git": {\n    "command": "npx",\n    "args": ["-y",\n "x"]}}}'
ASKED = {
    "settings.mcpServers.git.args.1": [5, 2],
    "mcpServers.git.command": [3, 16],
    "mcpServers.git.nothing.at.all": [2, 10],
    "mcpServers": [1, 16],
    "elsewhere": [1, 1],
}


async def run(request: Any) -> list[Any]:
    command = [str(node()), "--no-warnings", str(CLIENTS / "console_parts.mjs")]
    with anyio.fail_after(PATIENCE):
        result = await anyio.run_process(command, input=json.dumps(request).encode(), check=False, cwd=CLIENTS)
    assert result.returncode == 0, result.stderr.decode()[-4000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


async def test_json_is_read_like_by_python_and_a_network_holds_each_cue() -> None:
    cues = [f"cue {number}" for number in range(60)]
    edges = [{"source": cues[index // 4], "target": cues[index], "weight": 1.0} for index in range(1, 60)]
    edges += [
        {"source": cues[59], "target": cues[0], "weight": 2.0},
        {"source": "gone", "target": cues[1], "weight": 1},
    ]
    recall = {"activated": cues, "edges": edges, "center": cues[0]}
    results, places, plan = await run(
        {"texts": [*GOOD, *BAD], "paths": {"text": CONFIG, "asked": [*ASKED]}, "recall": recall}
    )
    for text, result in zip(GOOD, results, strict=False):
        assert result == {"value": json.loads(text), "error": None}, text
    positions = [
        (result["error"]["code"], result["error"]["line"], result["error"]["column"]) for result in results[len(GOOD) :]
    ]
    assert dict(zip(BAD, positions, strict=True)) == BAD
    assert [[place["line"], place["column"]] for place in places] == [*ASKED.values()]
    assert sorted(node["cue"] for node in plan["nodes"]) == sorted(cues)
    assert len(plan["edges"]) == len(edges) - 1  # only cues that exist
    spots = [(node["x"], node["y"]) for node in plan["nodes"]]
    assert min((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 for a, b in combinations(spots, 2)) > 20**2
