"""The service's checks of a request before its model sees it: refusal, or removal of thinking.

Owns the order of these checks and the service's memory of a conversation: the messages it refused to answer. Knows no
HTTP and no script.
"""

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field

from agentic_rag.base.json_form import Json
from agentic_rag.testing.bindings import ELSEWHERE, BlockFailure, failures, without
from agentic_rag.testing.model_rules import BINDING_BETA, ModelRules, rules_of, thinks
from agentic_rag.testing.problems import problems
from agentic_rag.testing.prompt_cache import tokens_of_prompt

LINES = tuple(f"claude-{line}-" for line in ("fable", "mythos", "opus", "sonnet", "haiku"))
BYTES_PER_TEXT_TOKEN = 4
"""The stand-in's tokenizer."""


class Inadmissible(Exception):
    """The request is refused. ``reasons`` holds all problems; the service reports the first one."""

    def __init__(self, status: int, reasons: list[str]) -> None:
        super().__init__(status, reasons)
        self.status = status
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request as the model sees it. ``dropped``: removed thinking; ``refuses``: an earlier refusal still applies."""

    request: Json
    rules: ModelRules | None
    dropped: tuple[BlockFailure, ...] = ()
    refuses: bool = False

    @property
    def thinks(self) -> bool:
        return self.rules is None or thinks(self.request, self.rules)

    @property
    def shows_thinking(self) -> bool:
        """Whether the text of thinking is sent."""
        config = self.request.get("thinking") or {}
        if config.get("display") is not None or self.rules is None:
            return config.get("display") != "omitted"
        return self.rules.summarized

    @property
    def transformations(self) -> list[Json]:
        return [
            {"type": "thinking_dropped", "path": failure.path, "reason": failure.reason} for failure in self.dropped
        ]


@dataclass(slots=True)
class Admission:
    """The checks of one account.

    ``enforced``: thinking whose prefix changed is an error unless the request says otherwise (accounts since
    2026-08-31); else it passes. ``also_allowed``: further top-level keys. ``unknown``: parameters that this endpoint
    does not know. ``context_window`` overrides the model's. A Claude model that is not in the table is not found. Any
    other name is served, without its own rules.
    """

    enforced: bool = True
    also_allowed: Collection[str] = ()
    context_window: int | None = None
    unknown: Collection[str] = ()
    _refused: set[str] = field(default_factory=set)

    def admit(self, request: Json, betas: Collection[str]) -> Admitted:
        """Return the request as its model sees it.

        Raises:
            Inadmissible: With the service's texts.
        """
        reasons = problems(request, also_allowed=self.also_allowed, unknown=self.unknown, betas=betas)
        rules = rules_of(request.get("model"))
        if rules is None and str(request.get("model")).startswith(LINES):
            raise Inadmissible(404, [f"model: {request['model']}"])
        if reasons:
            raise Inadmissible(400, reasons)
        window = self.context_window or (rules.context_window if rules else None)
        # `tokens_of_prompt` counts as the cache does, with three bytes for a token.
        tokens = tokens_of_prompt(request) * 3 // BYTES_PER_TEXT_TOKEN
        if window is not None and tokens > window:
            raise Inadmissible(400, [f"prompt is too long: {tokens} tokens > {window} maximum"])
        dropped = self._bind(request, rules, betas) if rules else ()
        visible = without(request, dropped) if dropped else request
        return Admitted(visible, rules, dropped, not self._refused.isdisjoint(_questions(request)))

    def refuse(self, request: Json) -> None:
        """Record that a user's last message was refused; it stays refused as long as a request contains it."""
        self._refused.update(_questions(request)[-1:])

    def _bind(self, request: Json, rules: ModelRules, betas: Collection[str]) -> tuple[BlockFailure, ...]:
        failed = failures(request, rules)
        changed = [failure for failure in failed if failure.reason == "prefix_binding_mismatch"]
        if not changed:
            return tuple(failed)
        binding = (request.get("thinking") or {}).get("block_binding") or {}
        behavior = binding.get("prefix_mismatch_behavior")
        if behavior == "drop_block" and BINDING_BETA in betas:
            return tuple(failed)
        if self.enforced or behavior == "error":
            raise Inadmissible(400, [f"{failure.path}: {ELSEWHERE}" for failure in changed])
        return tuple(failure for failure in failed if failure not in changed)


def _questions(request: Json) -> list[str]:
    """Return the user's messages as hashes, each together with its model."""
    hashes = []
    for message in request["messages"]:
        if message["role"] != "user":
            continue
        content = message["content"]
        texts = (
            [content] if isinstance(content, str) else [block["text"] for block in content if block["type"] == "text"]
        )
        hashes += [
            hashlib.sha256(json.dumps([request["model"], text]).encode("utf-8", "replace")).hexdigest()
            for text in texts
        ]
    return hashes
