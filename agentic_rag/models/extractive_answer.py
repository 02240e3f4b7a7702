"""What the extractive model says: quotes chosen from hits and memories, and the sentences around them.

Owns which passages are quoted, the citations of the quotes, and the framing in the user's language. Pure;
deliberately knows no tool call and no stream, and never writes a fact of its own.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentic_rag.messages import Block, text_block
from agentic_rag.models.base import Citation
from agentic_rag.models.extractive_score import (
    CELLS,
    LEAD_LIMIT,
    Passage,
    Question,
    Rating,
    is_lead,
    rate,
    table_header,
)
from agentic_rag.models.extractive_words import Language, is_cjk

MAX_QUOTES = 3
"""Sentences that are chosen; what belongs to one (a table's header, the steps after a colon) comes along."""
MAX_PASSAGES = 20
"""Hits that are read, best first: comparing costs about 0.1 ms a sentence on the event loop."""
CLOSE = 0.62
"""A further sentence is quoted when it has this share of the best one's score."""
MEMORY_FLOOR = 0.4
"""Score from which a memory is quoted: it was not searched for by meaning, so it must fit well."""
LIST_LIMIT = 8
"""Items that are quoted with the sentence that introduces them."""

_ITEM = re.compile(r"\s*(?:[-*•·–]\s|\(?\d{1,3}[.)、]|[（(]?[一二三四五六七八九十]+[)）、])")
_REMOVED = "[removed]"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A ``search_result`` block and its place among all those of the request."""

    index: int
    source: str
    title: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """What the tools of the turn gave: hits (None: the documents were not searched), memories, what went wrong.

    ``problems`` are pairs of a tool's name and the reason it gave.
    """

    results: tuple[SearchResult, ...] | None = None
    memories: tuple[str, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Quote:
    result: SearchResult
    start: int
    end: int


def citation(result: SearchResult, start: int, end: int) -> Citation:
    """Return the citation of blocks ``start`` to ``end`` (exclusive), with the object the API would send."""
    cited = "".join(result.texts[start:end])
    raw = {
        "type": "search_result_location",
        "source": result.source,
        "title": result.title,
        "search_result_index": result.index,
        "start_block_index": start,
        "end_block_index": end,
        "cited_text": cited,
    }
    return Citation(result.index, start, end, cited, raw)


def answer(question: Question, language: Language, findings: Findings) -> list[Block]:
    """Return the text blocks of an answer: framing, then one block with its citation for each quote."""
    memories, best_memory = _memories(question, findings.memories)
    quotes, best = _quotes(question, findings.results or ())
    if memories and best < best_memory * CLOSE:
        quotes = []
    words = _WORDS[language]
    lines = [_problem(words, name, reason) for name, reason in findings.problems]
    lines += [words["memory"].format(memory) for memory in memories]
    if quotes:
        lines.append(words["also" if memories else "quotes"])
    elif not memories:
        failed = any(name == "search_documents" for name, _ in findings.problems)
        if findings.results is not None:
            lines.append(words["nothing"])
        elif not failed:
            lines.append(words["unsearched"])
    blocks = [text_block("\n\n".join(lines))] if lines else []
    return blocks + [_quoted(quote) for quote in quotes]


def about(language: Language) -> list[Block]:
    """Return who is speaking."""
    return [text_block(_WORDS[language]["about"])]


def greeting(language: Language, *, thanks: bool) -> list[Block]:
    """Return an answer to a greeting or to thanks."""
    return [text_block(_WORDS[language]["welcome" if thanks else "hello"])]


def remembered(language: Language, content: str, problems: Sequence[tuple[str, str]], *, saved: bool) -> list[Block]:
    """Return the confirmation that ``content`` was saved, or the plain news that it was not."""
    words = _WORDS[language]
    lines = [_problem(words, name, reason) for name, reason in problems]
    if saved:
        lines.append(words["saved"].format(content))
    elif not any(name == "promptx_remember" for name, _ in problems):
        lines.append(words["no memory"])
    return [text_block("\n\n".join(lines))]


def _problem(words: dict[str, str], name: str, reason: str) -> str:
    return words.get(f"failed {name}", words["failed"]).format(reason)


def _memories(question: Question, memories: Sequence[str]) -> tuple[list[str], float]:
    """The memories worth quoting, best first, and the best score."""
    if not memories:
        return [], 0.0
    ratings = rate(question, [Passage("", tuple(memories))])[0]
    rated = [pair for pair in zip(ratings, memories, strict=True) if pair[0].relevant and pair[0].score >= MEMORY_FLOOR]
    rated.sort(key=lambda pair: -pair[0].score)
    best = rated[0][0].score if rated else 0.0
    return [memory for rating, memory in rated if rating.score >= CLOSE * best][:MAX_QUOTES], best


def _quotes(question: Question, results: Sequence[SearchResult]) -> tuple[list[_Quote], float]:
    """The quotes, those of the best passage first and in reading order within one, and the best score."""
    results = results[:MAX_PASSAGES]
    ratings = rate(question, [Passage(result.title, result.texts) for result in results])
    chosen = _chosen(results, ratings)
    if not chosen:
        return [], 0.0
    quotes: list[_Quote] = []
    for place in dict.fromkeys(place for place, _ in chosen):
        ranges = [
            span
            for owner, index in chosen
            if owner == place
            for span in _belonging(question, results[place].texts, index)
        ]
        quotes += [_Quote(results[place], start, end) for start, end in _merged(ranges)]
    place, index = chosen[0]
    return quotes, ratings[place][index].score


def _chosen(results: Sequence[SearchResult], ratings: Sequence[Sequence[Rating]]) -> list[tuple[int, int]]:
    """Result and sentence of what is quoted, best first. Beside an answer stands nothing that cannot be one."""
    candidates = [
        (rating.score, place, index)
        for place, row in enumerate(ratings)
        for index, rating in enumerate(row)
        if rating.relevant and results[place].texts[index].strip() not in ("", _REMOVED)
    ]
    candidates.sort(key=lambda candidate: (-candidate[0], candidate[1:]))
    chosen: list[tuple[int, int]] = []
    said: set[str] = set()
    answered = False
    for score, place, index in candidates:
        if score < candidates[0][0] * CLOSE or len(chosen) == MAX_QUOTES:
            break
        text = results[place].texts[index].strip()
        fits = ratings[place][index].shows
        if text not in said and (fits or not answered):
            answered = answered or fits
            said.add(text)
            chosen.append((place, index))
    return chosen


def _belonging(question: Question, texts: Sequence[str], index: int) -> list[tuple[int, int]]:
    """The sentence and what it cannot be read without: a table's header, the list or the sentences it introduces."""
    header = table_header(texts, index)
    if header != index:
        return [(header, header + 1), (index, index + 1)]
    end = index + 1
    if texts[index].rstrip().endswith((":", "：")) or ("steps" in question.kinds and _ITEM.match(texts[index])):
        while end < len(texts) and end - index <= LIST_LIMIT and _ITEM.match(texts[end]):
            end += 1
    if end == index + 1 and is_lead(question, texts[index]):
        end = min(len(texts), end + LEAD_LIMIT)
    while end > index + 1 and texts[end - 1].strip() in ("", _REMOVED):
        end -= 1
    return [(index, end)]


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order, joined where they touch."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _quoted(quote: _Quote) -> Block:
    """A text block that shows the quote and carries its citation."""
    text, line = "", False
    for sentence in quote.result.texts[quote.start : quote.end]:
        shown = " ".join(sentence.split())
        before, line = line, CELLS in sentence or _ITEM.match(sentence) is not None
        if text and (before or line):
            text += "\n> "
        elif text and not (is_cjk(text[-1:]) or is_cjk(shown[:1])):
            text += " "
        text += shown
    raw = citation(quote.result, quote.start, quote.end).raw
    return {"type": "text", "text": f"\n\n> {text}", "citations": [raw]}


_WORDS: dict[Language, dict[str, str]] = {
    "en": {
        "quotes": "The documents say:",
        "also": "And the documents say:",
        "memory": "From memory: {}",
        "nothing": "I found nothing in the documents that answers this. Other words may find it.",
        "unsearched": "I have no documents to search here, and nothing in memory answers this.",
        "hello": "Hello! Ask me something, and I will quote what the documents say about it.",
        "welcome": "You are welcome.",
        "about": (
            "I am the extractive mode of this server: I search the documents and quote the sentences that fit best, "
            "but no language model is configured. Set ANTHROPIC_API_KEY and restart to get answers from Claude."
        ),
        "saved": "I will remember: {}",
        "no memory": "I have no memory here, so I cannot save that.",
        "failed": "A tool failed: {}",
        "failed promptx_action": "My role could not be activated: {}",
        "failed promptx_recall": "My memory could not be read: {}",
        "failed promptx_remember": "That could not be saved: {}",
        "failed search_documents": "The documents could not be searched: {}",
    },
    "zh": {
        "quotes": "文档中写道：",
        "also": "文档中还写道：",
        "memory": "记忆中有：{}",
        "nothing": "在文档中没有找到能回答这个问题的内容，可以换个说法再问。",
        "unsearched": "这里没有可以查找的文档，记忆中也没有相关内容。",
        "hello": "您好！请提问，我会引用文档中的相关原文来回答。",
        "welcome": "不客气。",
        "about": (
            "我是本服务器的摘录模式：在文档中查找并引用最相关的原句，没有配置语言模型。"
            "设置 ANTHROPIC_API_KEY 并重启后，将由 Claude 回答。"
        ),
        "saved": "记住了：{}",
        "no memory": "这里没有记忆功能，无法保存。",
        "failed": "工具出错：{}",
        "failed promptx_action": "角色未能激活：{}",
        "failed promptx_recall": "未能读取记忆：{}",
        "failed promptx_remember": "未能保存：{}",
        "failed search_documents": "未能查找文档：{}",
    },
}
