"""The twenty questions of the demo domain, and the evaluation of their answers.

This module defines the form of the questions and the rule for a correct citation. It deliberately knows no server and
no model. The caller passes a function that asks one question and returns the references of the answer.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "workspaces" / "demo"
QUESTIONS_FILE = REPOSITORY / "tests" / "demo_questions.jsonl"


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A question, and the document and passage (and page, in a PDF) that an answer must cite."""

    question: str
    language: str
    document: str
    passage: str
    page: int | None = None


@dataclass(frozen=True, slots=True)
class CitedPassage:
    """One reference of an answer, independent of its wire format."""

    document_name: str
    cited_text: str
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A question with the references of its answer. ``right``: one of them is the expected passage."""

    asked: DemoQuestion
    references: tuple[CitedPassage, ...]

    @property
    def right(self) -> bool:
        return any(
            reference.document_name == self.asked.document
            and self.asked.passage in reference.cited_text
            and (self.asked.page is None or reference.page == self.asked.page)
            for reference in self.references
        )


Ask = Callable[[str], Awaitable[Sequence[CitedPassage]]]


def demo_questions() -> list[DemoQuestion]:
    """Return the questions in the order of the file."""
    lines = QUESTIONS_FILE.read_text("utf-8").splitlines()
    return [DemoQuestion(**json.loads(line)) for line in lines if line.strip()]


async def ask_all(ask: Ask) -> list[Outcome]:
    """Ask every question, one after the other."""
    return [Outcome(question, tuple(await ask(question.question))) for question in demo_questions()]


def count_right(outcomes: Sequence[Outcome]) -> int:
    """Return the number of answers with the expected citation."""
    return sum(outcome.right for outcome in outcomes)
