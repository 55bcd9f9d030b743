"""Words as the catalogue compares them: one case, one spelling, the stems of words."""

from __future__ import annotations

import re
import unicodedata

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


def distance(one: str, other: str, most: int) -> int:
    """The edit distance of two words, a swap of neighbours counted as one; `most` + 1 where it is more."""
    if abs(len(one) - len(other)) > most:
        return most + 1
    before, last = list(range(len(other) + 1)), [0]
    two_before = before
    for i, a in enumerate(one, 1):
        last = [i]
        for j, b in enumerate(other, 1):
            best = min(before[j] + 1, last[-1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                best = min(best, two_before[j - 2] + 1)
            last.append(best)
        two_before, before = before, last
    return last[-1]


def spelled(word: str, known: frozenset[str]) -> str | None:
    """The one known word that a mistyped word must be; None where there is none, or there are several."""
    most = 0 if len(word) < 4 else 1 if len(word) < 7 else 2
    for reach in range(1, most + 1):
        near = {one for one in known if len(one) >= 4 and distance(word, one, reach) <= reach}
        stems = {stem(one) for one in near}
        if len(stems) == 1:
            return min(near, key=len)
        if stems:
            return None
    return None
