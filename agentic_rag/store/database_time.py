"""The database's clock as an SQL expression: the one clock that all processes of a store share.

Each dialect writes its time in the format of `clock.now`.
"""

from typing import Any

from sqlalchemy import Float, String
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import FunctionElement, literal


class DatabaseTime(FunctionElement[str]):
    """The database's time when the statement runs, plus ``plus`` seconds, as UTC text in the format of `clock.now`."""

    type = String()
    inherit_cache = True

    def __init__(self, plus: float = 0.0) -> None:
        super().__init__(literal(plus, Float()))


@compiles(DatabaseTime, "sqlite")
def _sqlite(element: DatabaseTime, compiler: SQLCompiler, **kw: Any) -> str:
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', 'now', {compiler.process(element.clauses, **kw)} || ' seconds')"


@compiles(DatabaseTime, "postgresql")
def _postgresql(element: DatabaseTime, compiler: SQLCompiler, **kw: Any) -> str:
    plus = compiler.process(element.clauses, **kw)
    moment = f"timezone('UTC', clock_timestamp() + make_interval(secs => {plus}))"
    return f"""to_char({moment}, 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""
