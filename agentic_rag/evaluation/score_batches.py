"""Scores in batches: after an answers run, one batch of the judge's service scores all its answers.

Only the judge's requests fit into a batch: each is one request without tools. The answers themselves need several
rounds with tools, so they stay turns. Verdicts never wait for scores: the run ends first.

The state is in the run's row (`Scoring`), so another process or the next start continues it. The id of a batch is
stored before the batch is first polled. A process that is killed between the service's acceptance and that write
submits the batch again: scores are still stored once, because a result that has scores is never scored again.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Final

import anyio
from sqlalchemy import Connection

from agentic_rag.base import failpoints
from agentic_rag.base.errors import AgenticRagError, ModelError
from agentic_rag.base.events import Usage
from agentic_rag.base.json_form import Json, from_json
from agentic_rag.base.messages import user_message
from agentic_rag.base.redaction import Redactor
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.evaluation.answers import EVALUATOR, evaluator_of
from agentic_rag.evaluation.judging import AnswerJudge, judge_text, no_scores, read_scores
from agentic_rag.evaluation.retrieval import RunSubject
from agentic_rag.models.base import Model, ModelRequest
from agentic_rag.models.batches import MAX_REQUESTS, NO_BATCHES, BatchAnswer, BatchingModel, BatchState
from agentic_rag.runtime.spending import Spending, request_tokens
from agentic_rag.store import evaluation, usage
from agentic_rag.store.budgets import Payer
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.evaluation import SCORING_OPEN, ResultRecord, RunFields, RunRecord, Scoring
from agentic_rag.store.usage import UsageLabels, UsageRecord

log = logging.getLogger(__name__)

AGENT: Final = "(judge)"
"""Agent name of these calls in the usage; no role can have this id."""
LOOK_SECONDS: Final = 30.0
"""Between two checks of running batches."""
LONGEST: Final = timedelta(hours=26)
"""The service ends a batch after 24 hours. One that is older is given up."""
SUBMIT_SECONDS: Final = 120.0
"""How long a stopping server waits for the id of a batch that it is submitting."""
MAX_TOKENS: Final = 1_000
"""Most tokens of a judge's answer."""


class ScoreBatches:
    """Scores the answers of ended runs. Call `look` repeatedly, in one process of a store at a time.

    ``judge`` scores one by one where the service has no batches. ``default_model``: for domains without a model.
    """

    def __init__(
        self,
        database: Database,
        model: Model,
        spending: Spending,
        redactor: Redactor,
        judge: AnswerJudge,
        default_model: str,
    ) -> None:
        self._db = database
        self._model = model
        self._spending = spending
        self._redactor = redactor
        self._judge = judge
        self._default_model = default_model
        self._looking = anyio.Lock()

    async def look(self) -> None:
        """Submit the planned batches, and store the scores of those that have ended.

        A failure of one run does not affect the others.
        """
        async with self._looking:
            for run in await self._db.read(evaluation.scoring_runs):
                try:
                    await self._advance(run)
                except AgenticRagError as exc:
                    log.warning("the scores of the run %s are tried again later: %s", run.id, exc)

    async def _advance(self, run: RunRecord) -> None:
        settings = DomainSettings.model_validate(from_json(RunSubject, run.subject).settings)
        results = await self._db.read(lambda conn: evaluation.results_of(conn, run.id))
        unscored = [result for result in results if result.observed.get("answer") and "scores" not in result.observed]
        if not unscored:
            await self._store(run, [], Scoring.DONE)
        elif run.batch_id:
            await self._collect(run, settings, unscored)
        elif run.scoring is Scoring.STOPPING:
            await self._give_up(run, settings, unscored, "the scoring was stopped")
        else:
            await self._submit(run, settings, unscored[:MAX_REQUESTS])

    def _model_of(self, settings: DomainSettings) -> str:
        return settings.evaluation.judge_model or settings.model or self._default_model

    # Submitting

    async def _submit(self, run: RunRecord, settings: DomainSettings, results: Sequence[ResultRecord]) -> None:
        name, criteria = self._model_of(settings), settings.evaluation.judge
        requests = {
            custom_id(result): _request(name, judge_text(criteria, result.question, result.observed["answer"]))
            for result in results
        }
        if not isinstance(self._model, BatchingModel):
            await self._score_singly(run, settings, results)
            return
        await self._check_budget(run, requests)
        failpoints.reached("scoring.submitting")
        stored = True
        # Once the service has the batch, its id must be stored even if the server stops now.
        with anyio.move_on_after(SUBMIT_SECONDS, shield=True) as waited:
            try:
                batch_id = await self._model.submit_batch(name, requests)
            except ModelError as error:
                if error.retryable:
                    raise
                log.info("the run %s is scored without a batch: %s", run.id, error)
                batch_id = ""
            else:
                fields: RunFields = {"scoring": Scoring.WAITING, "batch_id": batch_id, "batch_at": now()}
                update = partial(evaluation.update_scoring, run_id=run.id, among=(Scoring.PLANNED,), fields=fields)
                stored = await self._db.write(update, durable=True)
        if waited.cancelled_caught:  # the service did not answer in time; the run stays planned
            return
        failpoints.reached("scoring.submitted")
        if not batch_id:
            await self._score_singly(run, settings, results)
        elif not stored:  # stopped or deleted meanwhile
            await self._model.cancel_batch(name, batch_id)

    async def _check_budget(self, run: RunRecord, requests: Mapping[str, ModelRequest]) -> None:
        """Refuse a batch for which a budget has no room. Nothing stays reserved while the service works.

        Raises:
            BudgetExceeded, BudgetUnpriced: the batch may not begin now.
        """
        account = self._spending.account(Payer(run.domain_id, EVALUATOR, ""))
        try:
            sent = sum(map(request_tokens, requests.values()))
            await account.reserve(next(iter(requests.values())), SUBMIT_SECONDS, sent)
        finally:
            await account.aclose()

    async def _score_singly(self, run: RunRecord, settings: DomainSettings, results: Sequence[ResultRecord]) -> None:
        """Score one by one where the service has no batches. Each result is stored at once."""
        user = evaluator_of(run.domain_id)
        for result in results:
            scores, tokens = await self._judge.score(
                user, run.domain_id, settings, result.question, result.observed["answer"]
            )
            if not await self._store(run, [_with_scores(result, scores, tokens)], Scoring.PLANNED, tokens=tokens):
                return  # stopped or deleted
        failpoints.reached("scoring.stored")

    # Collecting

    async def _collect(self, run: RunRecord, settings: DomainSettings, unscored: Sequence[ResultRecord]) -> None:
        """Store the scores of an ended batch; cancel a batch that was stopped or is too old."""
        model, name = self._model, self._model_of(settings)
        if not isinstance(model, BatchingModel):
            await self._give_up(run, settings, unscored, "this server has no model service with batches any more")
            return
        old = datetime.now(UTC) - datetime.fromisoformat(run.batch_at) > LONGEST
        try:
            if await model.read_batch(name, run.batch_id) is not BatchState.ENDED:
                if old or run.scoring is Scoring.STOPPING:
                    await model.cancel_batch(name, run.batch_id)
                if old:
                    await self._give_up(run, settings, unscored, "the batch did not end within a day")
                return
            answers = await model.batch_answers(name, run.batch_id)
        except ModelError as error:
            if not old and error.http_status != HTTPStatus.NOT_FOUND and error.kind != NO_BATCHES:
                raise  # also a refused key: an operator can set another one while the service keeps the batch
            await self._give_up(run, settings, unscored, f"the batch cannot be read: {error}")
            return
        redact, criteria = self._redactor.of(run.domain_id), settings.evaluation.judge
        labels = UsageLabels(domain_id=run.domain_id, agent=AGENT, user_id=EVALUATOR)
        scored, costs = [], []
        sent = unscored if len(unscored) <= MAX_REQUESTS else unscored[:MAX_REQUESTS]
        for result in sent:
            answer = answers.get(custom_id(result), BatchAnswer(failure="the batch has no result for this answer"))
            failure = redact(answer.failure)
            scores = no_scores(criteria, failure) if failure else read_scores(redact(answer.text), criteria)
            scored.append(_with_scores(result, scores, answer.usage.sent + answer.usage.output))
            if answer.usage != Usage():
                costs.append(usage.row_of(labels, answer.model or name, answer.usage))
        stopping = run.scoring is Scoring.STOPPING
        after = Scoring.PLANNED if len(sent) < len(unscored) and not stopping else Scoring.DONE
        tokens = sum(row.input + row.cache_read + row.cache_write + row.output for row in costs)
        await self._store(run, scored, after, costs, tokens)
        failpoints.reached("scoring.stored")

    async def _give_up(
        self, run: RunRecord, settings: DomainSettings, unscored: Sequence[ResultRecord], reason: str
    ) -> None:
        """End the scoring; each answer without scores gets the reason."""
        scores = no_scores(settings.evaluation.judge, self._redactor.of(run.domain_id)(reason))
        await self._store(run, [_with_scores(result, scores, 0) for result in unscored], Scoring.DONE)

    async def _store(
        self,
        run: RunRecord,
        results: Sequence[ResultRecord],
        after: Scoring,
        costs: Sequence[UsageRecord] = (),
        tokens: int = 0,
    ) -> bool:
        """Store scores with their cost, and the next state. Returns False and stores nothing if the state changed."""
        # Scoring that continues must not overwrite a stop; scoring that ends may end from every open state.
        among = (run.scoring,) if after is Scoring.PLANNED else SCORING_OPEN
        fields: RunFields = {"scoring": after, "batch_id": ""}

        def store(conn: Connection) -> bool:
            if not evaluation.update_scoring(conn, run.id, among, fields, tokens):
                return False
            evaluation.put_results(conn, results)
            usage.put(conn, costs)
            return True

        with anyio.CancelScope(shield=True):
            return await self._db.write(store, durable=True)
        raise AssertionError("nothing cancels the scope")


def custom_id(result: ResultRecord) -> str:
    """Return the id of a result's request within a batch."""
    return f"{result.case_id}-{result.repeat}"


def _request(model: str, text: str) -> ModelRequest:
    return ModelRequest(model, MAX_TOKENS, (), (user_message(text),), thinking="off")


def _with_scores(result: ResultRecord, scores: Json, tokens: int) -> ResultRecord:
    return result.replace(observed={**result.observed, "scores": scores}, tokens=result.tokens + tokens)
