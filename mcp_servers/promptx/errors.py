"""The errors of roles, skills and memory, as one tree.

    PromptXError
    ├── RoleError
    │   ├── BadRoleId        the id is no valid file name
    │   ├── UnknownRole      no such role; carries the known ids
    │   ├── RoleNotReachable its memory cannot be used in this conversation; carries the ids of the possible roles
    │   ├── BrokenRole       the role file cannot be used and no earlier version was read
    │   ├── BadRoleFile      an item of `files` is not {kind, id, content}
    │   └── RoleRefused      a role was not written because it does not pass lint
    ├── SkillError
    │   ├── UnknownSkill     no usable skill has this name; carries the known names
    │   └── SkillUnreadable  the skill has no such file, or the file may not be read
    ├── MemoryFault
    │   ├── BadEngram        one engram of a batch is invalid; nothing of the batch was saved
    │   │   └── UnknownReplaced  the engram to replace does not exist
    │   ├── BadRecall        the query or mode is invalid
    │   ├── BadScope         the scope or user id cannot name a folder
    │   ├── UnknownMemory    no such memory within the caller's reach
    │   ├── NotYours         another user wrote the memory
    │   ├── MemoryFull       the memory has reached its limit
    │   └── MemoryUnavailable  the files cannot be read or written (locked, full, read-only, corrupt)
    ├── NotAllowed           the caller may not use this tool
    ├── WorkspaceBusy        the workspace does not answer in time; the work was not begun
    └── NotBound             the host did not bind the caller of the call

Constructors take data; `__str__` returns the text that a model or a person reads. This module knows nothing of MCP.
"""

from collections.abc import Sequence
from pathlib import Path


class PromptXError(Exception):
    """Base of all errors of this package; `str()` is safe to show to a model."""


class RoleError(PromptXError):
    """Base of the errors of roles."""


class BadRoleId(RoleError):
    """`value` is not a legal role or resource id."""

    def __init__(self, value: str, field: str = "role") -> None:
        super().__init__(value, field)
        self.value = value
        self.field = field

    def __str__(self) -> str:
        quoted = ascii(self.value[:80])
        return (
            f"{self.field} {quoted} is not a valid id: 1 to 64 letters (any script), digits, '_', '.' or '-', "
            "starting with a letter, digit or '_'."
        )


class SkillError(PromptXError):
    """Base of the errors of skills."""


class UnknownSkill(SkillError):
    """No usable skill has this name. ``skills``: names of the usable ones."""

    def __init__(self, skill: str, skills: Sequence[str]) -> None:
        super().__init__(skill, skills)
        self.skill = skill
        self.skills = tuple(skills)

    def __str__(self) -> str:
        return f"Unknown skill {self.skill[:80]!r}. Skills: {', '.join(self.skills) or 'none'}."


class SkillUnreadable(SkillError):
    """A file of a skill cannot be read because of ``reason``."""

    def __init__(self, skill: str, path: str, reason: str) -> None:
        super().__init__(skill, path, reason)
        self.skill = skill
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"The file {self.path[:200]!r} of the skill {self.skill!r} cannot be read: {self.reason}."


class UnknownRole(RoleError):
    """No role has this id. ``roles``: ids of the existing ones."""

    def __init__(self, role: str, roles: Sequence[str]) -> None:
        super().__init__(role, roles)
        self.role = role
        self.roles = tuple(roles)

    def __str__(self) -> str:
        return f"Unknown role {self.role!r}. Known roles: {', '.join(self.roles) or 'none'}."


class RoleNotReachable(RoleError):
    """The memory of ``role`` cannot be used in this conversation. ``possible``: roles whose memories can be used."""

    def __init__(self, role: str, possible: Sequence[str]) -> None:
        super().__init__(role, possible)
        self.role = role
        self.possible = tuple(possible)

    def __str__(self) -> str:
        return (
            f"The memory of the role {self.role[:80]!a} cannot be used here. Possible roles: "
            f"{', '.join(self.possible)}. Another role's memory can be used once promptx_action has activated the role "
            "in this conversation."
        )


class BrokenRole(RoleError):
    """The role's file is broken. `problems`: lines with position and hint."""

    def __init__(self, role: str, problems: Sequence[str]) -> None:
        super().__init__(role, problems)
        self.role = role
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join([f"Role {self.role!r} cannot be activated, its file is broken:", *self.problems])


class BadRoleFile(RoleError):
    """Item `index` (from 0) of the files of a role has the wrong shape. Nothing was changed."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index

    def __str__(self) -> str:
        return (
            f"files[{self.index}] must be an object with kind (role, thought, execution, knowledge or manual), id and "
            "content, all text. Nothing was written."
        )


class RoleRefused(RoleError):
    """The files were not written. `problems`: lines with position and hint."""

    def __init__(self, role: str, problems: Sequence[str]) -> None:
        super().__init__(role, problems)
        self.role = role
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join([f"Role {self.role!r} was not written, nothing was changed:", *self.problems])


class MemoryFault(PromptXError):
    """Base of the errors of memories."""


class BadEngram(MemoryFault):
    """Engram `index` (from 0) of a batch is invalid. No engram of the batch was saved."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index = index
        self.reason = reason

    def __str__(self) -> str:
        return f"engrams[{self.index}]: {self.reason} Nothing of this batch was saved."


class UnknownReplaced(BadEngram):
    """Engram `index` replaces ``engram_id``, which is not among the caller's memories."""

    def __init__(self, index: int, engram_id: str) -> None:
        super().__init__(index, f"replaces: there is no memory {engram_id[:80]!a} here; recall gives the ids.")


class BadRecall(MemoryFault):
    """`field` of a recall is invalid."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class BadScope(MemoryFault):
    """`field` (scope or user) cannot name a memory folder."""

    def __init__(self, field: str, value: str, reason: str) -> None:
        super().__init__(field, value, reason)
        self.field = field
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return f"memory {self.field} {self.value[:80]!a}: {self.reason}"


class UnknownMemory(MemoryFault):
    """The caller's memory has no engram of this id. The id of another user's engram gives the same error."""

    def __init__(self, engram_id: str) -> None:
        super().__init__(engram_id)
        self.engram_id = engram_id

    def __str__(self) -> str:
        return f"There is no memory {self.engram_id[:80]!a} here. promptx_recall gives the ids."


class NotYours(MemoryFault):
    """Another user of the shared memory wrote ``engram_id``."""

    def __init__(self, engram_id: str) -> None:
        super().__init__(engram_id)
        self.engram_id = engram_id

    def __str__(self) -> str:
        return (
            f"The memory {self.engram_id} is another user's: only they and the domain's admins may replace or forget "
            "it. Nothing was changed."
        )


class MemoryUnavailable(MemoryFault):
    """The memory in `folder` cannot be read or written now."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder = folder
        self.reason = reason

    def __str__(self) -> str:
        # The text omits the folder's path, because it belongs to the operator and a model would repeat it.
        return f"The memory of role {self.folder.name!r} is unavailable: {self.reason}. No batch was half saved."


class MemoryFull(MemoryFault):
    """The memory in `folder` has reached its limit of engrams."""

    def __init__(self, folder: Path, limit: int) -> None:
        super().__init__(folder, limit)
        self.folder = folder
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"The memory of role {self.folder.name!r} is full: it may hold {self.limit} memories. Nothing was saved; "
            "tell the user that old ones must be deleted first."
        )


class NotAllowed(PromptXError):
    """The caller may not use `tool`."""

    def __init__(self, tool: str) -> None:
        super().__init__(tool)
        self.tool = tool

    def __str__(self) -> str:
        return f"{self.tool} is only for administrators of the domain: a role steers everyone who uses it."


class NotBound(PromptXError):
    """An in-process call has no `key` in its `_meta`, or a value of the wrong kind."""

    def __init__(self, key: str, expected: str) -> None:
        super().__init__(key, expected)
        self.key = key
        self.expected = expected

    def __str__(self) -> str:
        return f"This server is bound to its host: _meta[{self.key!r}] must be {self.expected}."


class WorkspaceBusy(PromptXError):
    """Other work in the workspace does not end, so the call's work was not begun. ``reason`` comes from the host."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"Roles and memories do not answer now: {self.reason}. Nothing was changed; try again later."
