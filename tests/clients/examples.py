"""Find the complete examples in the pages about protocols, and run them as programs.

An example is a fence marked ``python complete`` or ``javascript complete``. The following fence ``text output``
contains lines that the program prints in this order, possibly among others. ``…`` stands for any text. This module
knows no server.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.node import CLIENTS, node

PAGES = Path(__file__).parents[2] / "docs" / "clients"

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
_ENDINGS = {"python": "py", "javascript": "mjs"}


@dataclass(frozen=True, slots=True)
class Example:
    """A program of a page. ``number`` counts from 1 on each page; ``promised`` are lines of its output."""

    page: str
    number: int
    language: str
    text: str
    promised: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.page}-{self.number}-{self.language}"

    def write(self, folder: Path) -> list[str]:
        """Write the program into a folder and return the command that runs it."""
        path = folder / f"example.{_ENDINGS[self.language]}"
        path.write_text(self.text, encoding="utf-8")
        if self.language == "python":
            return [sys.executable, str(path)]
        command = [str(node()), str(path)]
        (folder / "node_modules").symlink_to(CLIENTS / "node_modules")
        return command

    def find_unprinted(self, output: str) -> str | None:
        """Return the first promised line that is missing at its position in the output, or None."""
        lines = iter(output.splitlines())
        for promise in self.promised:
            pattern = re.compile(".*".join(map(re.escape, promise.split("…"))))
            if not any(pattern.fullmatch(line) for line in lines):
                return promise
        return None


def read_examples(page: str, text: str) -> list[Example]:
    """Return the examples of a page's text.

    Raises:
        ValueError: an example promises no output, or an output belongs to no example.
    """
    examples: list[Example] = []
    program: tuple[str, str] | None = None
    for label, body in _FENCE.findall(text):
        language, _, mark = label.strip().partition(" ")
        if program is not None:
            if label.strip() != "text output" or not body.strip():
                raise ValueError(f"{page}: what example {len(examples) + 1} prints is not said after it")
            promised_lines = tuple(line for line in body.splitlines() if line.strip())
            examples.append(Example(page, len(examples) + 1, *program, promised_lines))
            program = None
        elif mark == "complete" and language in _ENDINGS:
            program = (language, body)
        elif mark:
            raise ValueError(f"{page}: nothing is known of ```{label}")
    if program is not None:
        raise ValueError(f"{page}: what example {len(examples) + 1} prints is not said after it")
    return examples


def all_examples() -> list[Example]:
    """Return the examples of all pages, in the order of the pages' names."""
    return [
        example for path in sorted(PAGES.glob("*.md")) for example in read_examples(path.stem, path.read_text("utf-8"))
    ]
