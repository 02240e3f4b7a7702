"""What the extractive model makes of a request: whose turn it is, what is asked, what the tools have given.

Owns the reading of prompt and messages. Pure; deliberately decides nothing and writes nothing.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentic_rag.messages import Block, Message, plain_text, tool_uses
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.extractive_answer import Findings, SearchResult
from agentic_rag.models.extractive_score import understand
from agentic_rag.models.extractive_words import Language, content_words, is_cjk, language_of

Intent = Literal["question", "greeting", "thanks", "about"]

MAX_REASON = 200
"""Characters of a tool's error that are told on."""
FOLLOWED = 3
"""Earlier questions that a chain of follow-ups may draw on."""

_ROLE = re.compile(r"promptx_action[^\n]*?\brole\b[^\n\"“”'`]*[\"“'`]([\w][\w.-]{0,63})[\"”'`]")
_GREETING = re.compile(
    r"(?:hi|hello|hey|good (?:morning|afternoon|evening|day)|greetings"
    r"|你好|您好|嗨|哈喽|大家好|早上好|下午好|晚上好|早)"
    r"(?: there| everyone| all)?[\s!,.。！，~～呀啊]*",
    re.IGNORECASE,
)
_THANKS = re.compile(
    r"(?:many )?(?:thanks|thank you|thx|cheers|谢谢|多谢|感谢)"
    r"(?: (?:a lot|so much|very much|you))?(?:你|您|了)?[\s!,.。！，~～]*",
    re.IGNORECASE,
)
_ABOUT = re.compile(
    r"(?:(?:hi|hello|hey)[\s,!.]+)?(?:(?:who|what) are you(?: exactly)?|what(?:'s| is) your name|what can you do"
    r"(?: for me)?|how do you work|(?:please )?introduce yourself|tell me about yourself|are you (?:an? |really )?"
    r"(?:ai|human|robot|bot|person|chatbot|claude|chatgpt|gpt|llm|language model)|which (?:model|llm) are you"
    r"|(?:你好[，,！!\s]*)?(?:请问)?[你您](?:是谁|是什么|叫什么(?:名字)?|能做什么|能干什么|会做什么|会什么|可以做什么"
    r"|怎么工作|是人吗|是机器人吗|是(?:ai|claude|gpt|chatgpt|大?语言模型|什么模型)吗?)|(?:请)?(?:介绍一下)?你?自我介绍(?:一下)?"
    r"|(?:请)?介绍一下你自己)[\s?？。.!！]*",
    re.IGNORECASE,
)
_REMEMBER = re.compile(
    r"(?:(?:please|could you|can you|would you|and)[\s,]+){0,3}(?:remember|memori[sz]e|don't forget|keep in mind)"
    r"(?:\s+(?:that|this|please))?\s*[:,，：]?\s+(?P<en>.+)"
    r"|(?:请|麻烦|你|您|帮我|帮忙|务必|要){0,4}(?:记住|记下来?|记一下|牢记)(?:一下)?[\s:：,，]*(?P<zh>.+)",
    re.IGNORECASE | re.DOTALL,
)
_NOT_TO_REMEMBER = re.compile(r"(?:when|how|what|who|where|why|me|to)\b|了[吗么]|吗", re.IGNORECASE)
_OPENER = re.compile(
    r"\s*(?:and|but|so|or|also|then|what about|how about)\b|\s*(?:那么?|还有|以及|另外|它|他|她|这个|那个|这些|那些)"
    r"|.*(?:呢)[？?。\s]*$",
    re.IGNORECASE | re.DOTALL,
)
_POINTER = re.compile(r"\b(?:it|its|that|this|they|them|those|these|one|there)\b|它|这个|那个|这样|那样", re.IGNORECASE)
_NOTE = re.compile(r"\s*((?:\[note:[^\n]*\]\s*\n\s*)+)(?=\S)", re.IGNORECASE)
_MEMORY = re.compile(r"^- \[[A-Z]+ [\d.]+\] ", re.MULTILINE)
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+", re.MULTILINE)
_CUES = re.compile(r"\s*\([^()]*\)\s*\Z")


@dataclass(frozen=True, slots=True)
class Reading:
    """One request as the model understands it.

    ``before`` holds the earlier questions that a follow-up hangs on. ``called`` names the tools called in this
    turn, ``call_ids`` are all ids of the request. ``activate`` says that the role is due, ``to_remember`` is
    what the user wants saved, "" for nothing.
    """

    question: str
    before: str
    language: Language
    intent: Intent
    to_remember: str
    role: str
    activate: bool
    called: frozenset[str]
    call_ids: tuple[str, ...]
    findings: Findings


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    arguments: Any
    result: Block | None
    hits: tuple[SearchResult, ...]
    current: bool


def read(request: ModelRequest) -> Reading:
    """Return what stands in a request."""
    start = _turn_start(request.messages)
    notes, question = _asked(request.messages[start]) if start is not None else ("", "")
    calls = list(_calls(request.messages, start))
    current = [call for call in calls if call.current]
    system = "\n".join(block.get("text", "") for block in request.system)
    role = _role(notes) or _role(system) or _last_role(calls)
    earlier = [_asked(message)[1] for message in request.messages[:start] if _has_text(message)]
    return Reading(
        question=question,
        before=_before(question, earlier),
        language=language_of(question if any(map(str.isalpha, question)) else system),
        intent=_intent(question),
        to_remember=told_to_remember(question),
        role=role,
        activate=_activation_due(calls, notes, system),
        called=frozenset(call.name for call in current),
        call_ids=tuple(use["id"] for message in request.messages for use in tool_uses(message["content"])),
        findings=_findings(current),
    )


def _has_text(message: Message) -> bool:
    return message["role"] == "user" and bool(plain_text(message["content"]).strip())


def _turn_start(messages: Sequence[Message]) -> int | None:
    """The newest user message with words in it: what follows are steps of its turn."""
    return next((place for place in reversed(range(len(messages))) if _has_text(messages[place])), None)


def _asked(message: Message) -> tuple[str, str]:
    """The notes before the user's words, and the words: the last text block, without a note at its head."""
    texts = [text for block in message["content"] if block.get("type") == "text" and (text := block["text"]).strip()]
    *notes, words = texts
    if head := _NOTE.match(words):
        notes.append(head[1])
        words = words[head.end() :]
    return "\n".join(notes), words.strip()


def _calls(messages: Sequence[Message], start: int | None) -> Iterator[_Call]:
    """All tool calls in order, each with its result and the search results in it."""
    results: dict[str, tuple[Block, tuple[SearchResult, ...]]] = {}
    count = 0
    for message in messages:
        for block in message["content"]:
            hits = tuple(SearchResult(count + place, *hit) for place, hit in enumerate(_search_results(block)))
            count += len(hits)
            if block.get("type") == "tool_result":
                results[block["tool_use_id"]] = (block, hits)
    for place, message in enumerate(messages):
        for use in tool_uses(message["content"]):
            result, hits = results.get(use["id"], (None, ()))
            yield _Call(use["name"], use.get("input"), result, hits, start is not None and place > start)


def _search_results(block: Block) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Source, title and sentences of a ``search_result``, or of those inside a ``tool_result``."""
    if block.get("type") == "search_result":
        texts = tuple(part.get("text", "") for part in block.get("content", ()))
        yield str(block.get("source", "")), str(block.get("title", "")), texts
    elif block.get("type") == "tool_result" and isinstance(block.get("content"), list):
        for part in block["content"]:
            if part.get("type") == "search_result":
                yield from _search_results(part)


def _role(text: str) -> str:
    found = _ROLE.search(text)
    return found[1] if found else ""


def _last_role(calls: Sequence[_Call]) -> str:
    for call in reversed(calls):
        if call.name == "promptx_action" and isinstance(call.arguments, dict):
            return str(call.arguments.get("role") or "")
    return ""


def _activation_due(calls: Sequence[_Call], notes: str, system: str) -> bool:
    """Once per conversation, again when a note asks, never twice in a turn."""
    activations = [call for call in calls if call.name == "promptx_action"]
    if any(call.current for call in activations):
        return False
    if "promptx_action" in notes:
        return True
    done = any(call.result is not None and not call.result.get("is_error") for call in activations)
    return "promptx_action" in system and not done


def _findings(calls: Sequence[_Call]) -> Findings:
    hits: tuple[SearchResult, ...] | None = None
    memories: list[str] = []
    problems: list[tuple[str, str]] = []
    for call in calls:
        text = _result_text(call.result)
        if call.result is None or call.result.get("is_error"):
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            problems.append((call.name, (lines[0] if lines else "no result")[:MAX_REASON]))
        elif call.name == "promptx_recall":
            memories += memories_in(text)
        elif call.name == "search_documents":
            hits = (hits or ()) + call.hits
    return Findings(hits, tuple(dict.fromkeys(memories)), tuple(problems))


def _result_text(result: Block | None) -> str:
    content = result.get("content", "") if result else ""
    return content if isinstance(content, str) else plain_text(content)


def memories_in(text: str) -> list[str]:
    """Return the contents of the memories in the text of a recall.

    PromptX writes ``- [ATOMIC 0.8] content (cue · cue)``, where the content may have several lines; from any
    other list the items are taken. The keyword map above them is no memory.
    """
    if _MEMORY.search(text):
        items = _MEMORY.split(text)[1:]
        items[-1:] = items[-1].split("\n\n")[:1]
        found = [_CUES.sub("", item) for item in items]
    else:
        found = [part.split("\n")[0] for part in _BULLET.split(text)[1:]]
    return [" ".join(item.split()) for item in found if item.strip()]


def _intent(question: str) -> Intent:
    if _GREETING.fullmatch(question):
        return "greeting"
    if _THANKS.fullmatch(question):
        return "thanks"
    return "about" if _ABOUT.fullmatch(question) else "question"


def told_to_remember(text: str) -> str:
    """Return what a message tells to remember, "" when it tells nothing of the kind ("do you remember …?")."""
    found = _REMEMBER.fullmatch(text.strip())
    if not found:
        return ""
    content = (found["en"] or found["zh"]).strip()
    if _NOT_TO_REMEMBER.match(content) and content.endswith(("?", "？")):
        return ""
    return content


def _before(question: str, earlier: Sequence[str]) -> str:
    """The earlier questions that a follow-up hangs on, oldest first."""
    hung: list[str] = []
    for previous in reversed(earlier):
        if len(hung) == FOLLOWED or not _follows_up(question):
            break
        if _intent(previous) == "question" and not told_to_remember(previous):
            hung.insert(0, previous)
            question = previous
    return " ".join(hung)


def _follows_up(question: str) -> bool:
    """Whether a question cannot stand alone: it opens with "and", points at something, or has next to no words."""
    # A run of Chinese characters is not cut into words by spaces: two characters are about one.
    size = sum(len(word) // 2 if is_cjk(word[0]) else 1 for word in content_words(question))
    if size <= 1 and not understand(question).kinds:
        return True
    return not size or (size <= 4 and bool(_OPENER.match(question) or _POINTER.search(question)))
