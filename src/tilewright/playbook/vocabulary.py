"""The operations the grammar of words knows: how they are said, and what they are in PyTorch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

NUMBER = r"(-?\d+(?:\.\d*)?(?:e-?\d+)?|-?\.\d+)"


class Shape(str, Enum):
    """The shape of a tensor that an operation brings."""

    WHOLE = "like x"
    COLUMN = "one element per column"


class Effect(str, Enum):
    ELEMENTS = "keeps every element"
    WHOLE_ROW = "keeps every element, and needs the whole row"
    REDUCES = "leaves one element per row"


@dataclass(frozen=True)
class Extra:
    """A tensor or a number that an operation takes beside the value at hand."""

    name: str
    shape: Shape | None  # None: a number
    default: float = 0.0


@dataclass(frozen=True)
class Operation:
    """`code` is Python in which {v} is the value at hand, {0}, {1} the numbers said, and {name} an extra."""

    name: str  # in the kernel's name
    says: str  # in the reference's docstring
    pattern: str  # of the clause, without filler words
    code: str
    effect: Effect = Effect.ELEMENTS
    extras: tuple[Extra, ...] = ()
    assumption: str = ""
    defaults: tuple[str, ...] = ()  # of numbers that need not be said
    needs_positive: bool = False
    makes_positive: bool = False

    def match(self, clause: str) -> re.Match[str] | None:
        return re.fullmatch(self.pattern, clause)


_WEIGHT = Extra("weight", Shape.COLUMN)
_BIAS = Extra("bias", Shape.COLUMN)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "layernorm",
        "LayerNorm without affine parameters",
        r"(?:layer ?norm|layer normali[sz]e|layer normali[sz]ation) (?:without|no) (?:affine(?: "
        r"parameters)?|weights?(?: (?:or|and|/) bias)?)",
        "F.layer_norm({v}, ({v}.shape[-1],), eps={eps})",
        Effect.WHOLE_ROW,
        (Extra("eps", None, 1e-5),),
        "LayerNorm goes over the last dimension and has no weight and bias; its eps is 1e-5",
    ),
    Operation(
        "layernorm",
        "LayerNorm",
        r"layer ?norm|layer normali[sz]e|layer normali[sz]ation",
        "F.layer_norm({v}, ({v}.shape[-1],), {weight}, {bias}, {eps})",
        Effect.WHOLE_ROW,
        (_WEIGHT, _BIAS, Extra("eps", None, 1e-5)),
        "LayerNorm goes over the last dimension and has a weight and a bias; its eps is 1e-5",
    ),
    Operation(
        "rmsnorm",
        "RMSNorm",
        r"rms ?norm|rms normali[sz]e|rms normali[sz]ation|root mean square norm",
        "F.rms_norm({v}, ({v}.shape[-1],), {weight}, {eps})",
        Effect.WHOLE_ROW,
        (_WEIGHT, Extra("eps", None, 1e-6)),
        "RMSNorm goes over the last dimension and has a weight; its eps is 1e-6",
    ),
    Operation("softmax", "softmax", r"soft ?max", "torch.softmax({v}, dim=-1)", Effect.WHOLE_ROW, makes_positive=True),
    Operation("log_softmax", "log-softmax", r"log ?soft ?max", "torch.log_softmax({v}, dim=-1)", Effect.WHOLE_ROW),
    Operation(
        "l2_normalize",
        "division by the L2 norm",
        r"(?:l2|euclidean) ?(?:norm|normali[sz]e|normali[sz]ation)|normali[sz]e (?:to )?unit (?:length|norm)",
        "F.normalize({v}, dim=-1)",
        Effect.WHOLE_ROW,
        assumption="L2 normalisation divides by the norm of the last dimension, at least 1e-12",
    ),
    Operation("row_mean", "the mean", r"mean|average", "{v}.mean(dim=-1)", Effect.REDUCES),
    Operation("row_sum", "the sum", r"sum|add up|total", "{v}.sum(dim=-1)", Effect.REDUCES),
    Operation("row_max", "the maximum", r"max|maximum|greatest", "{v}.amax(dim=-1)", Effect.REDUCES),
    Operation("row_min", "the minimum", r"min|minimum|least", "{v}.amin(dim=-1)", Effect.REDUCES),
    Operation(
        "gelu",
        "GELU by its tanh formula",
        r"gelu (?:tanh|approximate|approximation|approx)|(?:tanh|approximate|approx|fast|new) gelu",
        'F.gelu({v}, approximate="tanh")',
        assumption="GELU is the tanh approximation",
    ),
    Operation(
        "gelu",
        "exact GELU",
        r"(?:exact )?gelu(?: exact| erf)?",
        "F.gelu({v})",
        assumption="GELU is the exact one, with erf",
    ),
    Operation("silu", "SiLU", r"silu|swish", "F.silu({v})"),
    Operation("relu", "ReLU", r"relu", "torch.relu({v})"),
    Operation("relu6", "ReLU6", r"relu ?6", "F.relu6({v})"),
    Operation(
        "leaky_relu",
        "LeakyReLU",
        rf"leaky ?relu(?: (?:slope )?{NUMBER})?",
        "F.leaky_relu({v}, {0})",
        assumption="LeakyReLU has the negative slope {0}",
        defaults=("0.01",),
    ),
    Operation(
        "elu",
        "ELU",
        rf"elu(?: (?:alpha )?{NUMBER})?",
        "F.elu({v}, {0})",
        assumption="ELU has alpha {0}",
        defaults=("1.0",),
    ),
    Operation("sigmoid", "sigmoid", r"sigmoid|logistic", "torch.sigmoid({v})", makes_positive=True),
    Operation("tanh", "tanh", r"tanh|hyperbolic tangent", "torch.tanh({v})"),
    Operation("softplus", "softplus", r"soft ?plus", "F.softplus({v})", makes_positive=True),
    Operation("mish", "Mish", r"mish", "F.mish({v})"),
    Operation("hardswish", "hardswish", r"hard ?swish", "F.hardswish({v})"),
    Operation("hardsigmoid", "hardsigmoid", r"hard ?sigmoid", "F.hardsigmoid({v})"),
    Operation("exp", "exp", r"exp|exponential|exponentiate", "torch.exp({v})", makes_positive=True),
    Operation("sqrt", "square root", r"sqrt|square root", "torch.sqrt({v})", needs_positive=True, makes_positive=True),
    Operation("log", "natural logarithm", r"log|logarithm|natural logarithm", "torch.log({v})", needs_positive=True),
    Operation("abs", "absolute value", r"abs|absolute(?: value)?", "torch.abs({v})", makes_positive=True),
    Operation("square", "square", r"squared?", "torch.square({v})", makes_positive=True),
    Operation("neg", "negation", r"neg|negate|minus", "-{v}"),
    Operation(
        "clamp",
        "clamp to [{0}, {1}]",
        rf"(?:clamp|clip)(?: (?:to|between|from))? ?{NUMBER}(?: to| -)? {NUMBER}",
        "torch.clamp({v}, {0}, {1})",
    ),
    Operation("scale", "times {0}", rf"(?:scale|multiply|multiplied|times|mul)(?: by)? {NUMBER}", "{v} * {0}"),
    Operation("divide", "divided by {0}", rf"(?:divide|divided|div)(?: by)? {NUMBER}", "{v} / {0}"),
    Operation("shift", "plus {0}", rf"(?:add|plus) {NUMBER}", "{v} + {0}"),
    Operation("shift", "minus {0}", rf"(?:subtract|minus) {NUMBER}", "{v} - {0}"),
    Operation(
        "bias",
        "plus a bias",
        r"(?:add |plus |with )?bias(?: vector| add(?:ition)?)?",
        "{v} + {bias}",
        extras=(_BIAS,),
        assumption="the bias is a vector with one element per column",
    ),
    Operation(
        "residual",
        "plus a residual",
        r"(?:add |plus |with )?(?:residual|skip)(?: (?:connection|tensor|add(?:ition)?))*",
        "{v} + {residual}",
        extras=(Extra("residual", Shape.WHOLE),),
        assumption="the residual has the shape of x",
    ),
    Operation(
        "gate",
        "times a gate",
        r"(?:(?:multiply|multiplied|times|scale|mul)(?: by)? )?(?:gate|gating)(?: tensor)?|gated(?: by)?(?: tensor)?",
        "{v} * {gate}",
        extras=(Extra("gate", Shape.WHOLE),),
        assumption="the gate has the shape of x",
    ),
    Operation(
        "mask",
        "times a mask",
        r"(?:(?:multiply|multiplied|times|apply|mul)(?: by)? )?mask(?:ed)?(?: tensor)?",
        "{v} * {mask}",
        extras=(Extra("mask", Shape.WHOLE),),
        assumption="the mask has the shape of x and is multiplied with it",
    ),
    Operation(
        "scale",
        "times a vector",
        r"(?:multiply|multiplied|times|scale|mul)(?: by)? (?:(?:weight|scale|column)(?: vector)?|vector|weights)",
        "{v} * {scale}",
        extras=(Extra("scale", Shape.COLUMN),),
        assumption="the scale is a vector with one element per column",
    ),
)

KNOWN = (
    "layernorm, rmsnorm, softmax, log-softmax, l2 normalise, mean, sum, max, min, gelu, tanh gelu, silu, relu, "
    "leaky relu, "
    "elu, sigmoid, tanh, softplus, mish, hardswish, exp, log, sqrt, abs, square, clamp A to B, scale by N, "
    "divide by N, "
    "add N, add bias, add residual, multiply by a gate, a mask or a weight vector"
)
