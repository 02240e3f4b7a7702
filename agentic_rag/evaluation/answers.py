"""The answers tier: ask the questions of a case in a throw-away conversation and judge the last answer.

Turns run on the same engine as users' turns, on the image that is judged. Tools that may have effects are denied, and
nothing is remembered. The conversation is deleted afterwards.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace

import anyio

from agentic_rag.access.users import User
from agentic_rag.base.errors import AgenticRagError
from agentic_rag.base.events import AgentEvent, Reference
from agentic_rag.base.json_form import Json
from agentic_rag.conversations.conversations import Conversations, TurnTerms
from agentic_rag.conversations.shown_messages import ShownMessage
from agentic_rag.directory.cases import Expectations
from agentic_rag.directory.collection import collection_of
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.domains.definitions import DefinitionDraft, Staging
from agentic_rag.evaluation.judging import AnswerJudge
from agentic_rag.evaluation.retrieval import (
    ChunkSource,
    DomainView,
    RunSubject,
    passage_json,
    visible_ids,
)
from agentic_rag.evaluation.verdicts import (
    CaseOutcome,
    CaseVerdict,
    SeenAnswer,
    SeenPassage,
    judge_answer,
)
from agentic_rag.operations.deletion import Deletion
from agentic_rag.roles.trials import TriedRole
from agentic_rag.store import usage
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.database import Database
from agentic_rag.store.turns import TurnRecord, TurnStatus
from mcp_servers.promptx.nuwa import RoleFile
from mcp_servers.retriever.errors import IndexFault

EVALUATOR = "evaluation"
"""The user of evaluation turns. Usage is counted under this name."""
TURN_SECONDS = 1_800.0
"""How long a case may take, over all its questions."""
MAX_ANSWER = 20_000
"""Maximum characters of an answer that a result keeps."""
STOPS_RUN = frozenset({"BUDGET_EXCEEDED", "BUDGET_UNPRICED", "QUOTA_EXCEEDED"})
"""Errors after which further cases of a run would fail in the same way."""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """The verdict on an answer. ``observed`` shows the answer to people. ``stops`` is a reason to end the run."""

    verdict: CaseVerdict
    observed: Json
    seconds: float = 0.0
    tokens: int = 0
    stops: str = ""
    image_id: str = ""


def evaluator_of(domain_id: str) -> User:
    """Return the user that asks: a member of the domain who sees all documents, as the readers of the results do."""
    return User(EVALUATOR, domains=frozenset({domain_id}), reads_all=True)


class AnswerTier:
    """Judges answers. ``index`` supplies the headings of cited passages."""

    def __init__(
        self, database: Database, conversations: Conversations, deletion: Deletion, index: ChunkSource
    ) -> None:
        self._db = database
        self._conversations = conversations
        self._deletion = deletion
        self._index = index
        self._judge = AnswerJudge(conversations, deletion)

    async def judge(
        self,
        domain_id: str,
        settings: DomainSettings,
        subject: RunSubject,
        view: DomainView,
        questions: tuple[str, ...],
        expect: Expectations,
    ) -> JudgedAnswer:
        """Ask the questions and return the verdict on the last answer. A turn that fails gives an unknown verdict.

        If the domain has criteria for a judge, ``observed`` has its scores, too, unless a batch scores all answers of
        the run later.
        """
        absent = view.known_documents.missing(expect)
        if absent is not None:
            return JudgedAnswer(absent, {})
        user = evaluator_of(domain_id)
        staged = Staging(DefinitionDraft(settings, subject.components), visible_ids(view))
        tried = None
        if subject.role:
            tried = TriedRole(subject.role, tuple(RoleFile(*file) for file in subject.role_files))
        terms = TurnTerms(attended=False, staged=staged, tried=tried)
        try:
            conversation = await self._conversations.create(user, domain_id, transient=True)
        except AgenticRagError as exc:
            return _unknown(str(exc), exc.code)
        try:
            with anyio.fail_after(TURN_SECONDS):
                for question in questions:
                    accepted = await self._conversations.send(user, conversation.id, question, terms=terms)
                    async with aclosing(self._conversations.events(accepted.turn_id)) as events:
                        tools = await _follow(events)
                    turn = await self._conversations.turn(user, accepted.turn_id)
                    if turn.status is not TurnStatus.DONE:
                        return _of_failed(turn)
                judged = await self._judge_turn(user, conversation, turn, expect, tools)
        except TimeoutError:
            return _unknown(f"no answer within {TURN_SECONDS:g} s")
        except AgenticRagError as exc:
            return _unknown(str(exc), exc.code)
        finally:
            await self._deletion.end_call(conversation)
        if not settings.evaluation.judge or settings.evaluation.judge_batch:  # a batch follows the run
            return judged
        scores, tokens = await self._judge.score(user, domain_id, settings, questions[-1], judged.observed["answer"])
        return replace(judged, observed={**judged.observed, "scores": scores}, tokens=judged.tokens + tokens)

    async def _judge_turn(
        self,
        user: User,
        conversation: ConversationRecord,
        turn: TurnRecord,
        expect: Expectations,
        tools: tuple[str, ...],
    ) -> JudgedAnswer:
        dropped = await self._db.read(lambda conn: usage.dropped_of_turn(conn, turn.id))
        message = await self._conversations.message(user, conversation.id, turn.message_id)
        cited = await self._resolve(conversation.domain_id, turn.references)
        tokens = turn.usage.sent + turn.usage.output if turn.usage else 0
        seconds = turn.timings.get("total", 0) / 1000
        answer = SeenAnswer(message.content, cited, tools, seconds, tokens, dropped)
        observed: Json = {
            "answer": message.content[:MAX_ANSWER],
            "citations": [
                {**passage_json(passage, 400), "end": end}
                for passage, end in zip(cited, _ends(message, turn), strict=True)
            ],
            "tools": list(tools),
            "model": message.metadata.get("model"),
            "droppedCitations": dropped,
        }
        return JudgedAnswer(judge_answer(expect, answer), observed, seconds, tokens, image_id=turn.image_id)

    async def _resolve(self, domain_id: str, references: tuple[Reference, ...]) -> tuple[SeenPassage, ...]:
        """Return the verified citations with the headings above them."""
        verified = [reference for reference in references if reference.verified is not False]
        try:
            chunks = await self._index.get(collection_of(domain_id), [reference.chunk_id for reference in verified])
        except IndexFault:  # judge without headings: the answer itself does not depend on the index now
            chunks = {}
        passages: list[SeenPassage] = []
        for reference in references:
            chunk = chunks.get(reference.chunk_id)
            path = chunk.heading_path if chunk else ()
            # An unverified citation matches no expected document, since the document may not say so.
            name = reference.document_name if reference.verified is not False else ""
            passages.append(
                SeenPassage(name, reference.cited_text, path, reference.page, reference.cells, reference.score)
            )
        return tuple(passages)


def _ends(message: ShownMessage, turn: TurnRecord) -> list[int]:
    """Return the offset in the answer at which each reference is cited first, 0 for a reference without a citation."""
    ends: dict[int, int] = {}
    for citation in message.citations:
        ends.setdefault(citation.number, citation.end)
    return [ends.get(reference.number, 0) for reference in turn.references]


async def _follow(events: AsyncIterator[AgentEvent]) -> tuple[str, ...]:
    """Read a turn to its end; return the called tools in order."""
    return tuple([event.fields()["toolName"] async for event in events if event.type == "tool_call"])


def _of_failed(turn: TurnRecord) -> JudgedAnswer:
    error = turn.error
    return _unknown(error.message if error else f"the turn was {turn.status.value}", error.code if error else "")


def _unknown(reason: str, code: str = "") -> JudgedAnswer:
    verdict = CaseVerdict(CaseOutcome.UNKNOWN, reason=reason)
    return JudgedAnswer(verdict, {}, stops=reason if code in STOPS_RUN else "")
