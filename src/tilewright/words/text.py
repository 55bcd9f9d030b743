"""Words as the catalogue compares them: one case, one spelling, the stems of words."""

from __future__ import annotations

import re
import unicodedata
from difflib import get_close_matches

_SIGNS = str.maketrans(
    {"×": "x", "✕": "x", "⋅": "*", "·": "*", "−": "-", "–": "-", "—": ", ", "’": "'", "“": '"', "”": '"', "⊙": "*"}
)
_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_WORD = re.compile(r"[a-z]+\d*(?:[a-z]+\d*)*|#|\d+")
_ENDINGS = (
    (r"(?:is|iz)(?:ation|ing|ed|e|es|er)$", "iz"),
    (r"ies$", "y"),
    (r"(?<=[^s])s$", ""),
    (r"(?<=...)(?:ing|(?<!e)ed)$", ""),
    (r"(?<=..)([bdgklmnprt])\1$", r"\1"),
    (r"(?<=...)e$", ""),
)


def listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


_KEPT = listed(
    """ring string
    nothing red thing loss less cross this is as embed bias axis process class mass mish address
    all mamba bwd relu gelu silu selu celu elu need feed speed add off diff cell null hellinger roll shell biased
    unbiased"""
)
_STEMS: dict[str, str] = {}
_ENDED = tuple((re.compile(pattern), end) for pattern, end in _ENDINGS)


def plain(words: str) -> str:
    """The words in one line, with plain signs; powers that stand high are `**`."""
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda one: f"**{one[0].translate(_POWERS)}", words)
    text = text.translate(_SIGNS).replace("→", " -> ").replace("σ(", "sigmoid(").replace("∞", "inf")
    text = text.replace("=>", " -> ").replace("≤", "<=").replace("≥", ">=").replace("√", "sqrt")
    return " ".join(unicodedata.normalize("NFKC", text).split())


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; what is joined by hyphens or underscores is several."""
    return _WORD.findall(text.lower().replace("_", " ").replace("- inf", "-inf").replace("-inf", " neginf "))


def stem(word: str) -> str:
    """A word without its ending, so that normalise, normalized and normalisation are one."""
    known = _STEMS.get(word)
    if known is None:
        known = word
        for ending, end in _ENDED if word not in _KEPT and len(word) > 3 else ():
            known = ending.sub(end, known)
        known = {"colour": "color", "grey": "gray", "centr": "center", "neighbour": "neighbor"}.get(known, known)
        known = known.replace("greyscal", "grayscal").replace("behaviour", "behavior")
        _STEMS[word] = known
    return known


def stems(*texts: str) -> frozenset[str]:
    return frozenset(stem(word) for text in texts for word in words_of(text))


def joined(phrase: str) -> str:
    """A phrase as it is looked up: in stems, without articles and blanks, so that "layer norm" is "layernorm"."""
    return "".join(stem(one) for one in words_of(phrase) if one not in ARTICLES)


ARTICLES = listed("a an the its their")


def spelled(word: str, known: frozenset[str]) -> str | None:
    """The one known word that a mistyped word must be; None where there is none, or there are several."""
    alike = [one for one in known if len(one) > 3 and one[0] == word[0] and abs(len(one) - len(word)) < 3]
    near = get_close_matches(word, alike, 3, 0.84)
    return min(near, key=len) if len({stem(one) for one in near}) == 1 else None
