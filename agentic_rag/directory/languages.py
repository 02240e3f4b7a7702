"""Language detection by script and common words, precise enough to tell a model in which languages to search.

Pure. Knows no document.
"""

import re
from collections import Counter

NAMES = {
    "zh": "Chinese",
    "ja": "Japanese",
    "ko": "Korean",
    "ru": "Russian",
    "ar": "Arabic",
    "en": "English",
    "de": "German",
    "fr": "French",
    "es": "Spanish",
}

SAMPLE = 20_000
"""Characters that are examined, from the start of a text."""
SHARE = 0.1
"""Minimum share of the letters for a script to count."""

_SCRIPTS = {
    "ja": re.compile(r"[\u3040-\u30ff]"),
    "ko": re.compile(r"[\uac00-\ud7af]"),
    "zh": re.compile(r"[\u4e00-\u9fff]"),
    "ru": re.compile(r"[\u0400-\u04ff]"),
    "ar": re.compile(r"[\u0600-\u06ff]"),
    "latin": re.compile(r"[A-Za-z\u00c0-\u024f]"),
}
_WORDS = {
    "en": frozenset(["the", "and", "of", "to", "is", "that", "for", "with", "are", "this"]),
    "de": frozenset(["der", "die", "das", "und", "ist", "nicht", "mit", "von", "den", "ein"]),
    "fr": frozenset(["le", "la", "les", "et", "des", "est", "dans", "une", "pour", "que"]),
    "es": frozenset(["el", "los", "las", "y", "del", "que", "en", "una", "por", "con"]),
}


def languages_of(text: str) -> tuple[str, ...]:
    """Return the sorted language codes of a text. A text in Latin script without known words has no code."""
    text = text[:SAMPLE].lower()
    letters = {script: len(pattern.findall(text)) for script, pattern in _SCRIPTS.items()}
    total = sum(letters.values())
    languages = {script for script, count in letters.items() if total and count >= SHARE * total}
    if "ja" in languages:
        languages.discard("zh")  # kanji
    if "latin" in languages:
        languages.discard("latin")
        words = Counter(re.findall(r"[^\W\d_]+", text))
        scores = {language: sum(words[word] for word in common) for language, common in _WORDS.items()}
        best = max(scores, key=lambda language: scores[language])
        if scores[best]:
            languages.add(best)
    return tuple(sorted(languages))
