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


class Effect(str, Enum):
    ELEMENTS = "keeps every element"
    WHOLE_ROW = "keeps every element, and needs the whole row"
    REDUCES = "leaves one element per row"


class Form(str, Enum):
    """How an operation may be said."""

    FUNCTION = "as a name: gelu, gelu(x), gelu of x"
    ACTION = "as something done to the value at hand: add bias, scale by 2"


@dataclass(frozen=True)
class Extra:
    """A tensor or a number that an operation takes beside the value at hand."""

    name: str
    shape: Shape | None  # None: a number, which is the first that was said


@dataclass(frozen=True)
class Operation:
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

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "layernorm",
        "LayerNorm without affine parameters",
        rf"{_LAYER_NORM}(?:{_NO_PARAMETERS}{_SAID_EPS}|(?: with)? eps(?:ilon)?(?: of)? {NUMBER}{_NO_PARAMETERS})",
        "F.layer_norm({v}, ({v}.shape[-1],), eps={eps})",
        Effect.WHOLE_ROW,
        (_EPS,),
        "LayerNorm goes over the last dimension and has no weight and bias; its eps is {0}",
        ("1e-5",),
    ),
    Operation(
        "layernorm",
        "LayerNorm",
        rf"{_LAYER_NORM}(?: with (?:affine(?: parameters)?|weights? and bias))?{_SAID_EPS}",
        "F.layer_norm({v}, ({v}.shape[-1],), {weight}, {bias}, {eps})",
        Effect.WHOLE_ROW,
        (_WEIGHT, _BIAS, _EPS),
        "LayerNorm goes over the last dimension and has a weight and a bias; its eps is {0}",
        ("1e-5",),
    ),
    Operation(
        "rmsnorm",
        "RMSNorm without a weight",
        rf"{_RMS_NORM}(?:{_NO_PARAMETERS}{_SAID_EPS}|(?: with)? eps(?:ilon)?(?: of)? {NUMBER}{_NO_PARAMETERS})",
        "F.rms_norm({v}, ({v}.shape[-1],), eps={eps})",
        Effect.WHOLE_ROW,
        (_EPS,),
        "RMSNorm goes over the last dimension and has no weight; its eps is {0}",
        ("1e-6",),
    ),
    Operation(
        "rmsnorm",
        "RMSNorm",
        rf"{_RMS_NORM}(?: with weights?)?{_SAID_EPS}",
        "F.rms_norm({v}, ({v}.shape[-1],), {weight}, {eps})",
        Effect.WHOLE_ROW,
        (_WEIGHT, _EPS),
        "RMSNorm goes over the last dimension and has a weight; its eps is {0}",
        ("1e-6",),
    ),
    Operation("softmax", "softmax", r"soft ?max", "torch.softmax({v}, dim=-1)", Effect.WHOLE_ROW, makes_positive=True),
    Operation("log_softmax", "log-softmax", r"log ?soft ?max", "torch.log_softmax({v}, dim=-1)", Effect.WHOLE_ROW),
    Operation(
        "l2_normalize",
        "division by the L2 norm",
        r"(?:l2|euclidean) ?(?:normali[sz]e|normali[sz]ation)|normali[sz]e (?:to )?unit (?:length|norm)",
        "F.normalize({v}, dim=-1)",
        Effect.WHOLE_ROW,
        assumption="L2 normalisation divides by the norm of the last dimension, at least 1e-12",
    ),
    Operation("row_mean", "the mean", _MEAN, "{v}.mean(dim=-1)", Effect.REDUCES, assumption=f"the mean is that {_ROW}"),
    Operation("row_sum", "the sum", _SUM, "{v}.sum(dim=-1)", Effect.REDUCES, assumption=f"the sum is that {_ROW}"),
    Operation(
        "row_max", "the maximum", _MAX, "{v}.amax(dim=-1)", Effect.REDUCES, assumption=f"the maximum is that {_ROW}"
    ),
    Operation(
        "row_min", "the minimum", _MIN, "{v}.amin(dim=-1)", Effect.REDUCES, assumption=f"the minimum is that {_ROW}"
    ),
    Operation(
        "row_norm",
        "the L2 norm",
        r"(?:l2|euclidean) ?norm",
        "{v}.norm(dim=-1)",
        Effect.REDUCES,
        assumption=f"the L2 norm is that {_ROW}",
    ),
    Operation(
        "gelu",
        "GELU by its tanh formula",
        r"gelu(?: (?:with|using|by))? (?:tanh|approximate(?: tanh)?|tanh approximat(?:e|ion)|approximation|new)"
        r"|(?:tanh|approximate|approximated) gelu",
        'F.gelu({v}, approximate="tanh")',
        assumption="GELU is the tanh approximation",
    ),
    Operation(
        "gelu",
        "exact GELU",
        r"(?:exact |erf )?gelu(?: exact|(?: (?:with|using|by))? erf)?",
        "F.gelu({v})",
        assumption="GELU is the exact one, with erf",
    ),
    Operation("silu", "SiLU", r"silu|swish", "F.silu({v})"),
    Operation(
        "swiglu",
        "SiLU times a gate",
        r"swiglu(?: with gate)?",
        "F.silu({v}) * {gate}",
        extras=(_GATE,),
        assumption="SwiGLU is silu(x) * gate, with the gate a tensor of its own that has the shape of x",
    ),
    Operation(
        "geglu",
        "GELU times a gate",
        r"geglu(?: with gate)?",
        "F.gelu({v}) * {gate}",
        extras=(_GATE,),
        assumption="GEGLU is gelu(x) * gate with the exact GELU, and the gate a tensor of its own with the shape of x",
    ),
    Operation("relu", "ReLU", r"relu", "torch.relu({v})"),
    Operation("relu6", "ReLU6", r"relu ?6", "F.relu6({v})"),
    Operation(
        "leaky_relu",
        "LeakyReLU",
        rf"leaky ?relu(?:{_SET}(?: (?:negative )?slope(?: of)?)? {NUMBER})?",
        "F.leaky_relu({v}, {0})",
        assumption="LeakyReLU has the negative slope {0}",
        defaults=("0.01",),
    ),
    Operation(
        "elu",
        "ELU",
        rf"elu(?:{_SET}(?: alpha(?: of)?)? {NUMBER})?",
        "F.elu({v}, {0})",
        assumption="ELU has alpha {0}",
        defaults=("1.0",),
    ),
    Operation("sigmoid", "sigmoid", r"sigmoid|logistic", "torch.sigmoid({v})", makes_positive=True),
    Operation("log_sigmoid", "log-sigmoid", r"log ?sigmoid", "F.logsigmoid({v})"),
    Operation("tanh", "tanh", r"tanh|hyperbolic tangent", "torch.tanh({v})"),
    Operation("softplus", "softplus", r"soft ?plus", "F.softplus({v})", makes_positive=True),
    Operation("mish", "Mish", r"mish", "F.mish({v})"),
    Operation("hardswish", "hardswish", r"hard ?swish", "F.hardswish({v})"),
    Operation("hardsigmoid", "hardsigmoid", r"hard ?sigmoid", "F.hardsigmoid({v})"),
    Operation("exp", "exp", r"exp|exponential|exponentiate", "torch.exp({v})", makes_positive=True),
    Operation(
        "sqrt", "square root", r"sqrt|square roots?", "torch.sqrt({v})", needs_positive=True, makes_positive=True
    ),
    Operation(
        "log", "natural logarithm", r"log|logarithm|natural log(?:arithm)?", "torch.log({v})", needs_positive=True
    ),
    Operation("abs", "absolute value", r"abs|absolute(?: values?)?", "torch.abs({v})", makes_positive=True),
    Operation("square", "square", r"squares?|squared(?: values)?", "torch.square({v})", makes_positive=True),
    Operation("neg", "negation", r"neg|negate|negation", "-{v}"),
    Operation("clamp", "clamp to [{0}, {1}]", rf"(?:clamp|clip) {NUMBER} to {NUMBER}", "torch.clamp({v}, {0}, {1})"),
    Operation("scale", "times {0}", rf"(?:scale|multiply|mul)(?: by)? {NUMBER}", "{v} * {0}", form=Form.ACTION),
    Operation("divide", "divided by {0}", rf"(?:divide|div)(?: by)? {NUMBER}", "{v} / {0}", form=Form.ACTION),
    Operation("shift", "plus {0}", rf"add {NUMBER}", "{v} + {0}", form=Form.ACTION),
    Operation("shift", "minus {0}", rf"subtract {NUMBER}", "{v} - {0}", form=Form.ACTION),
    Operation(
        "bias",
        "plus a bias",
        r"(?:add )?bias(?: vector)?|bias add(?:ition)?",
        "{v} + {bias}",
        extras=(_BIAS,),
        assumption="the bias is a vector with one element per column",
        form=Form.ACTION,
    ),
    Operation(
        "residual",
        "plus a residual",
        r"(?:add )?residual(?: tensor)?|residual add(?:ition)?",
        "{v} + {residual}",
        extras=(Extra("residual", Shape.WHOLE),),
        assumption="the residual is a tensor of its own that has the shape of x",
        form=Form.ACTION,
    ),
    Operation(
        "gate",
        "times a gate",
        r"(?:multiply|mul)(?: by| with)? gate(?: tensor)?",
        "{v} * {gate}",
        extras=(_GATE,),
        assumption="the gate has the shape of x",
        form=Form.ACTION,
    ),
    Operation(
        "mask",
        "times a mask",
        r"(?:multiply|mul)(?: by| with)? mask(?: tensor)?",
        "{v} * {mask}",
        extras=(Extra("mask", Shape.WHOLE),),
        assumption="the mask has the shape of x and is multiplied with it",
        form=Form.ACTION,
    ),
    Operation(
        "scale",
        "times a vector",
        r"(?:multiply|scale|mul)(?: by| with)? (?:(?:weight|scale|column) vector|vector|weights?)",
        "{v} * {scale}",
        extras=(Extra("scale", Shape.COLUMN),),
        assumption="the scale is a vector with one element per column",
        form=Form.ACTION,
    ),
    *(
        Operation(
            name,
            says,
            rf"{verb} {statistic}",
            f"{{v}} {sign} {{v}}.{method}(dim=-1, keepdim=True)",
            Effect.WHOLE_ROW,
            assumption=f"{noun} is that {_ROW}",
            form=Form.ACTION,
        )
        for name, says, verb, statistic, sign, method, noun in (
            ("center", "minus the mean", "subtract", _MEAN, "-", "mean", "the mean"),
            ("minus_max", "minus the maximum", "subtract", _MAX, "-", "amax", "the maximum"),
            ("over_sum", "divided by the sum", "divide(?: by)?", _SUM, "/", "sum", "the sum"),
            ("over_max", "divided by the maximum", "divide(?: by)?", _MAX, "/", "amax", "the maximum"),
        )
    ),
)

# Single words of the grammar, for a suggestion where another is meant.
_WORDS = """
layernorm rmsnorm softmax normalise normalize mean average sum max maximum min minimum gelu silu swish swiglu geglu relu
relu6 leaky elu sigmoid tanh softplus mish hardswish hardsigmoid exp log sqrt abs absolute square squares squared negate
clamp clip scale multiply divide add subtract bias residual gate mask weight vector then plus minus times divided
multiplied before after exact approximate without with eps slope alpha
"""
WORDS = tuple(_WORDS.split())
