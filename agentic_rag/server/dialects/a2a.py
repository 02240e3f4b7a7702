"""A2A (Agent2Agent), versions 1.0 and 0.3: a turn as a task, a conversation as a context.

Pure. `A2aTask` takes the events of one turn and builds the protocol's task or the updates of its stream. The answer is
one artifact, `ARTIFACT`, whose metadata holds the citations. A wait for a person makes the task ``input-required``, a
wait for a task at an address (a sign-in) ``auth-required``.

Both versions share their meaning and differ in names: 1.0 is the JSON form of a protobuf (``TASK_STATE_WORKING``,
``{"statusUpdate": …}``), 0.3 has a ``kind`` in every object. `A2aForm` writes both.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import orjson

from agentic_rag.base.errors import ServerStopping
from agentic_rag.base.events import AgentEvent, WaitKind
from agentic_rag.base.json_form import Json
from agentic_rag.server.dialects.answer import progress_text
from agentic_rag.server.dialects.base import Headers, KnownWaits
from agentic_rag.server.dialects.openai_answer import AnswerCitation, OpenAiAnswer

ARTIFACT: Final = "answer"
"""The id of the artifact that holds the answer."""
INTERNAL_ERROR: Final = -32603
_CITED: Final = (
    "number",
    "documentId",
    "documentName",
    "chunkId",
    "citedText",
    "page",
    "cells",
    "table",
    "scanned",
    "documentDate",
    "reviewBy",
    "sourceUri",
    "verified",
)
_WAIT: Final = (
    "waitId",
    "kind",
    "answerer",
    "title",
    "message",
    "expiresAt",
    "server",
    "toolName",
    "arguments",
    "schema",
    "url",
    "options",
    "multiple",
    "warning",
    "sources",
)


class TaskState(StrEnum):
    """The state of a task, in the words of version 0.3."""

    SUBMITTED = "submitted"
    WORKING = "working"
    INPUT_REQUIRED = "input-required"
    AUTH_REQUIRED = "auth-required"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class A2aForm:
    """Writes the objects of one version. ``legacy``: version 0.3, else 1.0."""

    legacy: bool

    def state(self, state: TaskState) -> str:
        return str(state) if self.legacy else f"TASK_STATE_{state.name}"

    def text(self, text: str) -> Json:
        return {"kind": "text", "text": text} if self.legacy else {"text": text}

    def data(self, value: Json) -> Json:
        return {"kind": "data", "data": value} if self.legacy else {"data": value, "mediaType": "application/json"}

    def message(self, ident: str, parts: Sequence[Json], task_id: str, context_id: str, *, user: bool = False) -> Json:
        """Return a message of the agent, or of the user."""
        role = ("user" if user else "agent") if self.legacy else ("ROLE_USER" if user else "ROLE_AGENT")
        kind = {"kind": "message"} if self.legacy else {}
        return {
            **kind,
            "messageId": ident,
            "role": role,
            "parts": list(parts),
            "taskId": task_id,
            "contextId": context_id,
        }

    def task(self, task: Json) -> Json:
        """Return a task as a result of ``tasks/get``."""
        return {"kind": "task", **task} if self.legacy else task

    def wrap_task(self, task: Json) -> Json:
        """Return a task as a result of sending a message, or as the first result of a stream."""
        return self.task(task) if self.legacy else {"task": task}

    def status_update(self, update: Json, *, final: bool) -> Json:
        if self.legacy:
            return {"kind": "status-update", **update, "final": final}
        return {"statusUpdate": update}

    def artifact_update(self, update: Json) -> Json:
        return {"kind": "artifact-update", **update} if self.legacy else {"artifactUpdate": update}


@dataclass(frozen=True, slots=True)
class TaskSeed:
    """The parts of a task that are known before its first event. ``passages``: the base address of the domain's."""

    task_id: str
    context_id: str
    question: str
    question_id: str
    at: str
    passages: str = ""
    state: TaskState = TaskState.SUBMITTED


class A2aTask:
    """A task as the events of its turn show it so far. ``ended`` holds the ids of waits that need no answer any more.

    The task pauses when waits are open and no other call is running.
    """

    def __init__(self, form: A2aForm, seed: TaskSeed, ended: Collection[str] = ()) -> None:
        self.answer = OpenAiAnswer()
        self.form = form
        self.seed = seed
        self.state = seed.state
        self.at = seed.at
        self._settled = set(ended)
        self._open: dict[str, Json] = {}
        self._running: set[str] = set()
        self._delegates: set[str] = set()
        self._seq = 0

    @property
    def over(self) -> bool:
        """Whether the turn has ended."""
        return self.answer.over

    @property
    def paused(self) -> bool:
        """Whether the task waits for input, and for nothing else."""
        # The call of a delegate runs while the delegate waits, so it does not count as other work.
        waiting = {wait.get("toolCallId") for wait in self._open.values()}
        return bool(self._open) and not self.over and self._running - self._delegates <= waiting

    def take(self, event: AgentEvent, fields: Json) -> str:
        """Process an event. Returns the text that was added to the answer."""
        added = self.answer.take(fields)
        self.at, self._seq = str(fields["ts"]), event.seq
        if fields.get("parentToolCallId"):
            self._delegates.add(fields["parentToolCallId"])
        match event.type:
            case "tool_call":
                self._running.add(fields["toolCallId"])
            case "tool_result":
                self._running.discard(fields["toolCallId"])
            case "input_required" if fields["waitId"] not in self._settled:
                self._open[fields["waitId"]] = fields
            case "input_answered":
                self._settled.add(fields["waitId"])
                self._open.pop(fields["waitId"], None)
        self.state = self._find_state()
        return added

    def _find_state(self) -> TaskState:
        answer = self.answer
        if answer.over:
            if answer.failure is None:
                return TaskState.COMPLETED
            return TaskState.CANCELED if answer.failure.code == "GENERATION_ABORTED" else TaskState.FAILED
        if self._open:
            is_address = any(wait["kind"] == WaitKind.URL for wait in self._open.values())
            return TaskState.AUTH_REQUIRED if is_address else TaskState.INPUT_REQUIRED
        return TaskState.WORKING

    def status(self, text: str = "") -> Json:
        """Return the status with its message: ``text``, else the open waits or the reason of a failure."""
        status: Json = {"state": self.form.state(self.state), "timestamp": self.at}
        parts = [self.form.text(text)] if text else self._explain()
        if parts:
            ident = f"{self.seed.task_id}.{self._seq}"
            status["message"] = self.form.message(ident, parts, self.seed.task_id, self.seed.context_id)
        return status

    def _explain(self) -> list[Json]:
        failure = self.answer.failure
        if failure is not None:
            reason: Json = {"code": failure.code, "retryable": failure.retryable}
            return [{**self.form.text(failure.message), "metadata": reason}]
        if self.over:
            if self.answer.text:
                return []
            return [self.form.text(f"There is no answer: the model ended with {self.answer.stop_reason!r}.")]
        parts = []
        for wait in self._open.values():
            question = "\n".join(filter(None, (wait.get("title"), wait.get("message"), wait.get("url"))))
            parts += [self.form.text(question), self.form.data({name: wait[name] for name in _WAIT if name in wait})]
        return parts

    def artifact(self, text: str | None = None) -> Json:
        """Return the artifact with the whole answer, or a piece of it. Only the whole one holds the citations."""
        artifact: Json = {"artifactId": ARTIFACT, "name": "Answer"}
        artifact["parts"] = [self.form.text(self.answer.text if text is None else text)]
        if text is None:
            artifact["metadata"] = self.metadata()
        return artifact

    def metadata(self) -> Json:
        """Return the citations and the other facts that the protocol has no place for."""
        answer = self.answer
        facts = answer.more()
        facts.pop("toolCalls")
        cited = [_cite(citation, self.seed.passages) for citation in answer.citations]
        return {"citations": cited, **facts, "usage": dict(answer.usage)}

    def task(self, history: int | None = None, *, artifacts: bool = True) -> Json:
        """Return the task. ``history`` limits its messages, of which this server returns the question."""
        seed = self.seed
        task: Json = {"id": seed.task_id, "contextId": seed.context_id, "status": self.status()}
        if artifacts and self.answer.text:
            task["artifacts"] = [self.artifact()]
        if history != 0:
            question = [self.form.text(seed.question)]
            message = self.form.message(seed.question_id, question, seed.task_id, seed.context_id, user=True)
            task["history"] = [message]
        return task


class A2aStream:
    """The encoder of a task's stream: the task, its updates, and at the end its final status.

    ``request_id`` is the client's, which every result repeats. The stream begins at the event ``after``, or after the
    answers to the waits ``waits.answered``, with the task in its state at that point. Unless ``to_end`` is set, the
    stream also ends when the task waits for input.
    """

    name = "a2a"
    headers: Headers = ()
    needs_start = True

    def __init__(
        self,
        request_id: str | int | None,
        task: A2aTask,
        *,
        waits: KnownWaits | None = None,
        after: int = 0,
        history: int | None = None,
        to_end: bool = False,
    ) -> None:
        self.ended = False
        self._request_id = request_id
        self._task = task
        self._answered = set(waits.answered if waits else ())
        self._after = after
        self._history = history
        self._to_end = to_end
        self._begun = False
        self._last_state: TaskState | None = None
        self._sent = False
        self._replace = False

    def sse(self, event: AgentEvent) -> bytes:
        """Return the results as server-sent events, each a JSON-RPC response."""
        return b"".join(b"data: %b\n\n" % frame for frame in self.frames(event))

    def frames(self, event: AgentEvent) -> tuple[bytes, ...]:
        """Return the JSON-RPC responses."""
        return tuple(orjson.dumps(self._respond(result)) for result in self._take(event))

    def _respond(self, result: Json) -> Json:
        head: Json = {"jsonrpc": "2.0", "id": self._request_id}
        return {**head, "error": result["error"]} if "error" in result else {**head, "result": result}

    def _take(self, event: AgentEvent) -> list[Json]:
        if self.ended:
            return []
        fields, task = event.fields(), self._task
        own = not fields.get("agent")
        if own and event.type == "step_reset" and task.answer.sent_in_step:
            self._replace = True  # the protocol cannot shorten an artifact, so the next piece replaces all of it
        added = task.take(event, fields)
        if event.type == "input_answered":
            self._answered.discard(fields["waitId"])
        # Events before the start of the stream are taken as well: the task is shown as they leave it.
        if self._answered or event.seq < self._after:
            return []
        if not self._begun:
            return self._begin()
        if own and event.type == "notice" and fields["code"] == ServerStopping.code:
            self.ended = True
            return [{"error": {"code": INTERNAL_ERROR, "message": str(ServerStopping())}}]
        out: list[Json] = [self._piece(added)] if added else []
        if task.over and task.answer.text:
            out.append(self._last_piece())
        ends = self._note_end()
        progress = progress_text(fields) if own and not ends else ""
        # A second open wait leaves the state as it is, but the client has to see its question.
        if ends or progress or task.state is not self._last_state or event.type == "input_required":
            out.append(self._status(progress))
        return out

    def _note_end(self) -> bool:
        """Return whether the stream ends here: with its turn, or before it at a wait."""
        self.ended = self._task.paused and not self._to_end
        return self.ended or self._task.over

    def _begin(self) -> list[Json]:
        """Return the task, and its status again if the stream ends here."""
        self._begun, task = True, self._task
        self._last_state, self._sent = task.state, bool(task.answer.text)
        out = [task.form.wrap_task(task.task(self._history))]
        return [*out, self._status("")] if self._note_end() else out

    def _status(self, text: str) -> Json:
        task = self._task
        self._last_state = task.state
        update = {"taskId": task.seed.task_id, "contextId": task.seed.context_id, "status": task.status(text)}
        return task.form.status_update(update, final=self.ended or task.over)

    def _piece(self, text: str) -> Json:
        """Return the update that appends a text, or replaces the artifact if a step was taken back."""
        replace = self._replace or not self._sent
        text = self._task.answer.text if replace else text
        self._sent, self._replace = True, False
        return self._update(self._task.artifact(text), append=not replace, last=False)

    def _last_piece(self) -> Json:
        """Return the update that completes the artifact with its metadata, and no text that the client has."""
        replace = self._replace or not self._sent
        artifact = self._task.artifact()
        if not replace:
            artifact["parts"] = [self._task.form.text("")]
        return self._update(artifact, append=not replace, last=True)

    def _update(self, artifact: Json, *, append: bool, last: bool) -> Json:
        seed = self._task.seed
        update: Json = {"taskId": seed.task_id, "contextId": seed.context_id, "artifact": artifact}
        return self._task.form.artifact_update({**update, "append": append, "lastChunk": last})


def _cite(citation: AnswerCitation, passages: str) -> Json:
    source = {name: citation.source[name] for name in _CITED if citation.source.get(name) is not None}
    return {"start": citation.start, "end": citation.end, "uri": citation.address(passages), **source}
