"""The operator's file that maps a provider's groups to grants.

The format is a TOML file::

    [[grants]]
    groups = "legal-*"        # * stands for any characters; capital letters count
    domain = "dom_01j…"
    grant = "author"          # member, author or admin

    [[grants]]
    groups = "rag-operators"
    operator = true

Only the operator's text is a pattern: the name of a group is compared literally, whatever characters it contains.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, model_validator

from agentic_rag.access.rights import join_grants
from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.forms import Form, read_form
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.store.users import Grant

SETTING = "AGENTIC_RAG_OIDC_GRANTS"


class GrantForm(Form):
    """One entry of the file: a group pattern and its rights."""

    groups: str = Field(min_length=1, max_length=500)
    domain: str | None = Field(None, min_length=1, max_length=200)
    grant: Grant | None = None
    operator: bool = False

    @model_validator(mode="after")
    def _says_one_thing(self) -> "GrantForm":
        if self.operator == (self.domain is not None or self.grant is not None) or (
            (self.domain is None) != (self.grant is None)
        ):
            raise ValueError("either 'operator = true', or both 'domain' and 'grant' are needed.")
        return self


class GrantsFile(Form):
    """The whole file."""

    grants: list[GrantForm] = Field(min_length=1, max_length=10_000)


@dataclass(frozen=True, slots=True)
class Rights:
    """The combined rights of groups."""

    operator: bool
    grants: dict[str, Grant]

    @property
    def none(self) -> bool:
        """Whether the groups permit nothing."""
        return not self.operator and not self.grants


@dataclass(frozen=True, slots=True)
class _Line:
    pattern: re.Pattern[str]
    form: GrantForm


class GroupGrants:
    """The mapping file, reloaded after each change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] = ()
        self._lines: list[_Line] = []

    def rights_of(self, groups: Iterable[str]) -> Rights:
        """Return the rights of groups according to the current file.

        Raises:
            BadConfiguration: the file is missing or invalid; an older version of it is never used.
        """
        lines, operator = self._read(), False
        grants: dict[str, Grant] = {}
        for group in groups:
            for line in lines:
                if line.pattern.fullmatch(group) is None:
                    continue
                operator |= line.form.operator
                if line.form.domain is not None and line.form.grant is not None:
                    grants = join_grants(grants, {line.form.domain: line.form.grant})
        return Rights(operator, {} if operator else grants)

    def lines(self) -> list[GrantForm]:
        """Return the entries of the current file.

        Raises:
            BadConfiguration: as `rights_of`.
        """
        return [grant.form for grant in self._read()]

    def _read(self) -> list[_Line]:
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                form = read_form(GrantsFile, tomllib.loads(self._path.read_text(encoding="utf-8")))
                self._lines, self._stamp = [_Line(_pattern(grant.groups), grant) for grant in form.grants], stamp
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, InvalidInput) as exc:
            self._stamp = ()
            raise BadConfiguration(SETTING, f"{self._path}: {exc}") from exc
        return self._lines


def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, glob.split("*"))), re.DOTALL)
