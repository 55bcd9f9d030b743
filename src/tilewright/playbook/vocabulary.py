"""The operations the grammar of words knows: how they are said, and what they are in PyTorch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

NUMBER = r"(-?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?)"


class Shape(str, Enum):
    """The shape of a tensor that an operation brings."""

    WHOLE = "like x"
    COLUMN = "one element per column"


@dataclass(frozen=True)
class Extra:
    """A tensor or a number that an operation takes beside the value at hand."""

    name: str
    shape: Shape | None  # None: a number, which is the first that was said


class Effect(str, Enum):
    """What an operation does to a row."""

    ELEMENTS = "keeps every element"
    WHOLE_ROW = "keeps every element, and needs the whole row"
    REDUCES = "leaves one element per row"


class Form(str, Enum):
    """How an operation may be said."""

    FUNCTION = "as a name: gelu, gelu(x), gelu of x"
    ACTION = "as something done to the value at hand: add bias, scale by 2"


@dataclass(frozen=True)
class NamedOperation:
    """`code` is Python in which {v} is the value at hand, {0}, {1} the numbers said, and {name} an extra."""

    name: str  # in the kernel's name
    says: str  # in the reference's docstring
    pattern: str  # of the words, without articles
    code: str
    effect: Effect = Effect.ELEMENTS
    extras: tuple[Extra, ...] = ()
    assumption: str = ""
    defaults: tuple[str, ...] = ()  # of numbers that need not be said
    form: Form = Form.FUNCTION
    needs_positive: bool = False
    makes_positive: bool = False

    def match(self, clause: str) -> re.Match[str] | None:
        return re.fullmatch(self.pattern, clause)


_WEIGHT = Extra("weight", Shape.COLUMN)
_BIAS = Extra("bias", Shape.COLUMN)
_GATE = Extra("gate", Shape.WHOLE)
_EPS = Extra("eps", None)

_SET = r"(?: with)?"
_SAID_EPS = rf"(?:{_SET} eps(?:ilon)?(?: of)? {NUMBER})?"
_NO_PARAMETERS = (
    r"(?: (?:without|no|with no) (?:affine(?: parameters| transform)?|weights?(?: (?:or|and|nor) bias)?|parameters))"
)
_LAYER_NORM = r"(?:layer ?norm|layer normali[sz]e|layer normali[sz]ation)"
_RMS_NORM = r"(?:rms ?norm|rms normali[sz]e|rms normali[sz]ation|root mean square norm(?:ali[sz]ation)?)"
_MEAN, _SUM = r"(?:row )?(?:mean|average)", r"(?:row )?(?:sum|total)"
_MAX, _MIN = r"(?:row )?(?:max|maximum)", r"(?:row )?(?:min|minimum)"
_ROW = "of each row, along the last dimension"
_TIMES = r"(?:multiply|mul)(?: by| with)?"
_COLUMN_VECTOR = "(?:(?:weight|scale|column) vector|vector|weights?)"


def _norms(
    name: str, title: str, pattern: str, extras: tuple[Extra, ...], said: str, without: str, eps: str
) -> tuple[NamedOperation, NamedOperation]:
    """A norm over the last dimension without its parameters, and with them."""
    function = f"F.{title[:-4].lower()}_norm"
    brought = ", ".join(f"{{{one.name}}}" for one in extras)
    over = f"{title} goes over the last dimension and has"
    plain = NamedOperation(
        name,
        f"{title} without {without}",
        rf"{pattern}(?:{_NO_PARAMETERS}{_SAID_EPS}|(?: with)? eps(?:ilon)?(?: of)? {NUMBER}{_NO_PARAMETERS})",
        f"{function}({{v}}, ({{v}}.shape[-1],), eps={{eps}})",
        Effect.WHOLE_ROW,
        (_EPS,),
        f"{over} no {' and '.join(one.name for one in extras)}; its eps is {{0}}",
        (eps,),
    )
    affine = NamedOperation(
        name,
        title,
        rf"{pattern}(?: with (?:{said}))?{_SAID_EPS}",
        f"{function}({{v}}, ({{v}}.shape[-1],), {brought}, {{eps}})",
        Effect.WHOLE_ROW,
        (*extras, _EPS),
        f"{over} {' and '.join(f'a {one.name}' for one in extras)}; its eps is {{0}}",
        (eps,),
    )
    return plain, affine


def _row_statistic(name: str, says: str, pattern: str, method: str) -> NamedOperation:
    """One number of each row."""
    code = f"{{v}}.{method}(dim=-1)"
    return NamedOperation(name, says, pattern, code, Effect.REDUCES, assumption=f"{says} is that {_ROW}")


def _by_statistic(name: str, says: str, pattern: str, sign: str, method: str) -> NamedOperation:
    """The value at hand less, or over, a number of its row."""
    return NamedOperation(
        name,
        says,
        pattern,
        f"{{v}} {sign} {{v}}.{method}(dim=-1, keepdim=True)",
        Effect.WHOLE_ROW,
        assumption=f"{says[says.index('the') :]} is that {_ROW}",
        form=Form.ACTION,
    )


def _with_tensor(
    name: str, says: str, pattern: str, sign: str, extra: Extra, assumption: str, value: str = "{v}"
) -> NamedOperation:
    """The value at hand and a tensor, element by element; with a function of the value it is said as a name."""
    code, form = f"{value} {sign} {{{extra.name}}}", Form.ACTION if value == "{v}" else Form.FUNCTION
    return NamedOperation(name, says, pattern, code, extras=(extra,), assumption=assumption, form=form)


NAMED_OPERATIONS: tuple[NamedOperation, ...] = (
    *_norms(
        *("layernorm", "LayerNorm", _LAYER_NORM, (_WEIGHT, _BIAS)),
        *(r"affine(?: parameters)?|weights? and bias", "affine parameters", "1e-5"),
    ),
    *_norms("rmsnorm", "RMSNorm", _RMS_NORM, (_WEIGHT,), "weights?", "a weight", "1e-6"),
    NamedOperation(
        "softmax", "softmax", r"soft ?max", "torch.softmax({v}, dim=-1)", Effect.WHOLE_ROW, makes_positive=True
    ),
    NamedOperation("log_softmax", "log-softmax", r"log ?soft ?max", "torch.log_softmax({v}, dim=-1)", Effect.WHOLE_ROW),
    NamedOperation(
        "l2_normalize",
        "division by the L2 norm",
        r"(?:l2|euclidean) ?(?:normali[sz]e|normali[sz]ation)|normali[sz]e (?:to )?unit (?:length|norm)",
        "F.normalize({v}, dim=-1)",
        Effect.WHOLE_ROW,
        assumption="L2 normalisation divides by the norm of the last dimension, at least 1e-12",
    ),
    _row_statistic("row_mean", "the mean", _MEAN, "mean"),
    _row_statistic("row_sum", "the sum", _SUM, "sum"),
    _row_statistic("row_max", "the maximum", _MAX, "amax"),
    _row_statistic("row_min", "the minimum", _MIN, "amin"),
    _row_statistic("row_norm", "the L2 norm", r"(?:l2|euclidean) ?norm", "norm"),
    NamedOperation(
        "gelu",
        "GELU by its tanh formula",
        r"gelu(?: (?:with|using|by))? (?:tanh|approximate(?: tanh)?|tanh approximat(?:e|ion)|approximation|new)"
        r"|(?:tanh|approximate|approximated) gelu",
        'F.gelu({v}, approximate="tanh")',
        assumption="GELU is the tanh approximation",
    ),
    NamedOperation(
        "gelu",
        "exact GELU",
        r"(?:exact |erf )?gelu(?: exact|(?: (?:with|using|by))? erf)?",
        "F.gelu({v})",
        assumption="GELU is the exact one, with erf",
    ),
    NamedOperation("silu", "SiLU", r"silu|swish", "F.silu({v})"),
    _with_tensor(
        *("swiglu", "SiLU times a gate", r"swiglu(?: with gate)?", "*", _GATE),
        "SwiGLU is silu(x) * gate, with the gate a tensor of its own that has the shape of x",
        "F.silu({v})",
    ),
    _with_tensor(
        *("geglu", "GELU times a gate", r"geglu(?: with gate)?", "*", _GATE),
        "GEGLU is gelu(x) * gate with the exact GELU, and the gate a tensor of its own with the shape of x",
        "F.gelu({v})",
    ),
    NamedOperation("relu", "ReLU", r"relu", "torch.relu({v})"),
    NamedOperation("relu6", "ReLU6", r"relu ?6", "F.relu6({v})"),
    NamedOperation(
        "leaky_relu",
        "LeakyReLU",
        rf"leaky ?relu(?:{_SET}(?: (?:negative )?slope(?: of)?)? {NUMBER})?",
        "F.leaky_relu({v}, {0})",
        assumption="LeakyReLU has the negative slope {0}",
        defaults=("0.01",),
    ),
    NamedOperation(
        "elu",
        "ELU",
        rf"elu(?:{_SET}(?: alpha(?: of)?)? {NUMBER})?",
        "F.elu({v}, {0})",
        assumption="ELU has alpha {0}",
        defaults=("1.0",),
    ),
    NamedOperation("sigmoid", "sigmoid", r"sigmoid|logistic", "torch.sigmoid({v})", makes_positive=True),
    NamedOperation("log_sigmoid", "log-sigmoid", r"log ?sigmoid", "F.logsigmoid({v})"),
    NamedOperation("tanh", "tanh", r"tanh|hyperbolic tangent", "torch.tanh({v})"),
    NamedOperation("softplus", "softplus", r"soft ?plus", "F.softplus({v})", makes_positive=True),
    NamedOperation("mish", "Mish", r"mish", "F.mish({v})"),
    NamedOperation("hardswish", "hardswish", r"hard ?swish", "F.hardswish({v})"),
    NamedOperation("hardsigmoid", "hardsigmoid", r"hard ?sigmoid", "F.hardsigmoid({v})"),
    NamedOperation("exp", "exp", r"exp|exponential|exponentiate", "torch.exp({v})", makes_positive=True),
    NamedOperation(
        "sqrt", "square root", r"sqrt|square roots?", "torch.sqrt({v})", needs_positive=True, makes_positive=True
    ),
    NamedOperation(
        "log", "natural logarithm", r"log|logarithm|natural log(?:arithm)?", "torch.log({v})", needs_positive=True
    ),
    NamedOperation("abs", "absolute value", r"abs|absolute(?: values?)?", "torch.abs({v})", makes_positive=True),
    NamedOperation("square", "square", r"squares?|squared(?: values)?", "torch.square({v})", makes_positive=True),
    NamedOperation("neg", "negation", r"neg|negate|negation", "-{v}"),
    NamedOperation(
        "clamp", "clamp to [{0}, {1}]", rf"(?:clamp|clip) {NUMBER} to {NUMBER}", "torch.clamp({v}, {0}, {1})"
    ),
    NamedOperation("scale", "times {0}", rf"(?:scale|multiply|mul)(?: by)? {NUMBER}", "{v} * {0}", form=Form.ACTION),
    NamedOperation("divide", "divided by {0}", rf"(?:divide|div)(?: by)? {NUMBER}", "{v} / {0}", form=Form.ACTION),
    NamedOperation("shift", "plus {0}", rf"add {NUMBER}", "{v} + {0}", form=Form.ACTION),
    NamedOperation("shift", "minus {0}", rf"subtract {NUMBER}", "{v} - {0}", form=Form.ACTION),
    _with_tensor(
        *("bias", "plus a bias", r"(?:add )?bias(?: vector)?|bias add(?:ition)?", "+", _BIAS),
        "the bias is a vector with one element per column",
    ),
    _with_tensor(
        *("residual", "plus a residual", r"(?:add )?residual(?: tensor)?|residual add(?:ition)?", "+"),
        *(Extra("residual", Shape.WHOLE), "the residual is a tensor of its own that has the shape of x"),
    ),
    _with_tensor("gate", "times a gate", rf"{_TIMES} gate(?: tensor)?", "*", _GATE, "the gate has the shape of x"),
    _with_tensor(
        *("mask", "times a mask", rf"{_TIMES} mask(?: tensor)?", "*", Extra("mask", Shape.WHOLE)),
        "the mask has the shape of x and is multiplied with it",
    ),
    _with_tensor(
        *("scale", "times a vector", rf"(?:{_TIMES}|scale(?: by| with)?) {_COLUMN_VECTOR}", "*"),
        *(Extra("scale", Shape.COLUMN), "the scale is a vector with one element per column"),
    ),
    _by_statistic("center", "minus the mean", f"subtract {_MEAN}", "-", "mean"),
    _by_statistic("minus_max", "minus the maximum", f"subtract {_MAX}", "-", "amax"),
    _by_statistic("over_sum", "divided by the sum", f"divide(?: by)? {_SUM}", "/", "sum"),
    _by_statistic("over_max", "divided by the maximum", f"divide(?: by)? {_MAX}", "/", "amax"),
)

# Single words of the grammar, for a suggestion where another is meant.
_WORDS = """
layernorm rmsnorm softmax normalise normalize mean average sum max maximum min minimum gelu silu swish swiglu geglu relu
relu6 leaky elu sigmoid tanh softplus mish hardswish hardsigmoid exp log sqrt abs absolute square squares squared negate
clamp clip scale multiply divide add subtract bias residual gate mask weight vector then plus minus times divided
multiplied before after exact approximate without with eps slope alpha
"""
WORDS = tuple(_WORDS.split())
