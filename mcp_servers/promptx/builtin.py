"""The folder of the built-in roles: at the top of a checkout, next to this module in an installed wheel."""

from pathlib import Path
from typing import Final

_INSTALLED = Path(__file__).with_name("builtin_roles")
BUILTIN_ROLES: Final = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "roles"
