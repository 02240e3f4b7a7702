"""JSON columns as text: fast to write, exact to read.

Owns one encoder and one decoder for both databases. Knows no column.
"""

import json
from typing import Any

import orjson


def dumps(value: Any) -> str:
    """Return JSON text, keys in their order.

    A model's arguments may hold what orjson refuses (a lone surrogate, an integer past 64 bits); the
    standard library writes those escaped or in full.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value)


loads = json.loads
"""The standard library's: orjson would turn an integer past 64 bits into a float."""
