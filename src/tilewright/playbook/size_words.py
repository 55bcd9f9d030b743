"""Sizes of dimensions by their names: "batch 32", "m=1024", "with 1000 classes", "hidden size 768"."""

from __future__ import annotations

import re

from tilewright.playbook.errors import NotUnderstood

_LAYER = r"(?:linear|fully connected|dense)(?: layer)?"
_LINEAR = re.compile(
    rf"\b{_LAYER}(?:\(| with| from)? ?(\d+)(?: in(?:put)?s?)?(?: features)?"
    r"(?: (?:to|and) |, ?| ?-> ?)(\d+)(?: out(?:put)?s?| units)?(?: features)?\)?"
)
_FEATURES = re.compile(
    r"\b(?:(?P<to>in|out)(?:put)? features ?[=:]? ?(?P<one>\d+)"
    r"|(?P<two>\d+) (?:(?P<side>in|out)(?:put)?(?: features|s)|units|neurons))\b,?"
)
_ONE_SHAPE = re.compile(
    rf"\b(?P<layer>{_LAYER}|(?:feed ?forward|ffn|mlp)(?: network)?) (?P<one>\d+) ?[x×] ?(?P<two>\d+)\b"
    r"(?! ?[x×]| ?(?:by|and|with|times|@|,)(?: an?)? ?\d)"
)
_SHAPE = r"(\d+) ?[x×] ?(\d+)"
_TABLE = re.compile(
    rf"\b(?:(?:in|from|into|with|of) )?(?:an? |the )?(?:table (?:of )?(?:shape |size )?{_SHAPE}|{_SHAPE} table)\b"
)
_ONE_TABLE = re.compile(
    rf"(?<!rotary )(?<!position )(?<!positional )\bembedding(?: look ?up)?(?: of| for)? {_SHAPE}\b"
    r"(?! ?[x×]| (?:tokens|indices|ids))"
)
# As people name them, and as the tasks do; of those that begin alike the longer first.
_NAMES = (
    (r"head (?:dim(?:ension)?|size)", "head_size"),
    (r"(?:kv|key value) heads", "kv_heads"),
    (r"(?:kv )?cache(?: (?:length|size))?", "cached"),
    (r"batch(?:es)?(?: size)?", "batch"),
    (r"seq(?:uence)?(?: ?len(?:gth)?)?|context(?: length)?|queries", "sequence"),
    (r"vocab(?:ulary)?(?: size)?", "vocabulary"),
    (r"hidden(?: (?:dim(?:ension)?|size|units))?", "hidden"),
    (
        r"(?:(?:embedding|feature|model|last|inner) )?dim(?:ension)?|d ?model|(?:embedding|model) size|features",
        "features",
    ),
    (r"columns|cols", "cols"),
    (r"(?:num(?:ber of)? )?(?:attention )?heads", "heads"),
    (r"(?<!gather )(?<!select )(?<!index )(?<!take )rows", "rows"),
    (r"out(?:put)? (?:channels?|filters?)|channels? out|filters?", "filters"),
    (r"in(?:put)? channels?|channels?(?: in)?", "channels"),
    (r"classes|logits", "classes"),
    *((one, one) for one in ("height", "width", "depth", "tokens", "keys")),
)
_NAMED = re.compile("|".join(f"(?P<{name}>{pattern})" for pattern, name in _NAMES))
_ANY = "|".join(pattern for pattern, _ in _NAMES)
COUNTED = (
    r"(?:kv |key value )?heads|rows|columns|cols|features|classes|logits|tokens|keys|queries|hidden(?: units)?"
    r"|out(?:put)? (?:channels?|filters?)|channels? out|filters?|in(?:put)? channels?|channels?(?: in)?"
    r"|vocab(?:ulary)?|batch(?:es)?|dim(?:ension)?s?"
)
_DIMENSION = r"(?:(?:embedding|feature|model|last|inner|hidden) )?dim(?:ension)?|features"
_OF = r"(?:(?<=batch)|(?<=size)|(?<=dim)|(?<=dimension)|(?<=length)|(?<=len)|(?<=vocab)|(?<=vocabulary)) of| is"
_AND = r"(?:(?:\b(?:with|and|for|of|on|has|having|an?|the)\b|,) ?)*"
_OVER = r"(?:\b(?:over|across|along) )?(?:\bthe )?"
_ALONG = r"(?:\b(?P<along>over|across|along) )?(?:\bthe )?"
# What goes along a dimension that can be said, so that "mean over 16 batches" says more than a size.
_GOES_ALONG = re.compile(
    r"\b(?:sum|total|mean|average|max(?:imum)?|min(?:imum)?|largest|smallest|prod(?:uct)?|var(?:iance)?|std|standard"
    r"|arg ?max|arg ?min|log ?sum ?exp|soft ?max|cum ?sum|cum ?prod|cumulative|prefix|scan|l[12]|top)\b"
)
_OF_THEM = re.compile(
    r"\b(?:sum|total|mean|average|max(?:imum)?|min(?:imum)?) of (?:the )?\d+ "
    r"(?:rows|columns|cols|tokens|batches|heads|channels)\b(?! (?:and|by|with|of) \d)"
)
_LEADING = re.compile(r"rows|tokens|queries|keys|(?:kv |key value )?heads|batch(?:es)?|(?:in(?:put)? )?channels?")
# Numbers that belong to other words, so that of "stride 2, channels 3" none is "2 channels".
_OTHER = (
    r"kernels?|windows?|strides?|padding|dilation|(?<!\d )groups|top|every|each|first|last|by|eps(?:ilon)?|slope|alpha"
    r"|add|subtract|temperature"
)
_END = r"(?<=\d)\b(?![.x]\d|,\d{3}\b| and \d+\b(?! [a-z]))"
_SAID = re.compile(
    rf"\b(?:{_OTHER})(?: size)?(?: of\b)?[ =]{{1,3}}\d+(?:x\d+)*\b"
    rf"|{_AND}(?:\b(?P<name>{_ANY}|[mnk](?= ?=)|length(?= ?=))|{_OVER}\b(?P<dimension>{_DIMENSION}))"
    rf"(?:{_OF})?(?: ?[=:] ?| )(?P<size>\d+){_END}"
    rf"|{_AND}{_ALONG}(?<![x.,\d-])\b(?P<count>\d+) (?P<noun>{COUNTED})\b(?! ?=)(?! (?:per|in|each|of|at|norm)\b)"
    rf"(?P<more> [\d.]+\b(?! (?:{COUNTED})\b| ?[x×]))?"
)
_OF_SEVERAL = re.compile(r"\b(?:attention|sdpa|embedding|feed ?forward|ffn|mlp)\b")  # whose dimensions have names
_MOST_DIMENSIONS = 9  # "dim 1" is one of the value's dimensions, and "dim 4096" the size of one


def layers_with_names(text: str) -> str:
    """Linear layers and embeddings with their sizes by name. Raises `NotUnderstood` for a shape that could be that of
    the layer or of what it takes."""
    text = re.sub(r"\bembedding\((\d+), ?(\d+)\)", r"embedding vocabulary=\1 features=\2 ", text)
    text = re.sub(r"\b(linear\(\d+, ?\d+), ?bias ?= ?false\)", r"\1) without bias ", text)
    if "embedding" in text:
        text = _TABLE.sub(lambda one: f"vocabulary={one[1] or one[3]} features={one[2] or one[4]} ", text)
    if said := _ONE_TABLE.search(text):
        raise NotUnderstood(
            f'"{said[0]}" could be the table or the indices; say "vocabulary {said[1]} and dim {said[2]}" or '
            f'"{said[1]}x{said[2]} indices"'
        )
    if said := _ONE_SHAPE.search(text):
        layer, one, two = said["layer"], said["one"], said["two"]
        other = f'"{layer} from {one} to {two}"' if re.match(_LAYER, layer) else f'"{layer} dim {one} hidden {two}"'
        raise NotUnderstood(
            f'"{said[0]}" could be the shape of x, or {one} inputs and {two} outputs; say "{layer} on {one}x{two}" or '
            f"{other}"
        )
    if re.search(rf"\b{_LAYER}", text):
        text = _LINEAR.sub(r"linear k=\1 n=\2 ", text)
        text = _FEATURES.sub(_named_feature, text)
    return text


def _named_feature(said: re.Match[str]) -> str:
    name = "k" if "in" in (said["to"], said["side"]) else "n"
    return f"{name}={said['one'] or said['two']}"


def take_named_sizes(text: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """The sizes that are said with the names of their dimensions, and the text without them."""
    if said := _OF_THEM.search(text):
        raise NotUnderstood(
            f'"{said[0]}" could be one number of each, or one of all of them; say "of each row" or "over dim 0", '
            "and sizes as in 64x1024"
        )
    found: list[tuple[str, int]] = []
    several = _OF_SEVERAL.search(text) is not None
    goes_along = _GOES_ALONG.search(text) is not None

    def taken(said: re.Match[str]) -> str:
        name = said["name"] or said["dimension"] or said["noun"]
        if name is None:
            return said[0]
        if said["more"]:
            count, noun = said["count"], said["noun"]
            raise NotUnderstood(
                f'"{count} {noun}{said["more"]}" could be {count} {noun} or {noun}{said["more"]}; write {noun}={count} '
                f"or {noun}={said['more'].strip()}"
            )
        size = int(said["size"] or said["count"])
        if re.fullmatch(r"dim(?:ension)?s?", name) and not several and size <= _MOST_DIMENSIONS:
            return said[0]
        found.append((_name(name), size))
        if said["along"] and goes_along and _LEADING.fullmatch(name):
            return " over the first dimension " if name.startswith("batch") else f" {said['along']} {name} "
        return " "

    text = _SAID.sub(taken, text)
    return tuple(found), text


def _name(said: str) -> str:
    known = _NAMED.fullmatch(said.rstrip("s") if said.startswith("dim") else said)
    return str(known.lastgroup) if known is not None else said
