"""Where the built-in roles lie: in a checkout at its top, in an installed wheel beside this module."""

from pathlib import Path
from typing import Final

_INSTALLED = Path(__file__).with_name("builtin_roles")
BUILTIN_ROLES: Final = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "roles"
