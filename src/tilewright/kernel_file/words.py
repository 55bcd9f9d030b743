"""The vocabulary of launch plans: keywords, limits, and known misspellings; and `contract`, the authors' summary."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources

from tilewright.kernel_file import expression_values
from tilewright.records import DType, ScalarType

DIRECTIVES = (
    "version",
    "op",
    "out",
    "scratch",
    "let",
    "const",
    "need",
    "tune",
    "accept",
    "lead",
    "map",
    "library",
    "launch",
)
# Directives of older versions.
FORMER_DIRECTIVES = {"save": "say `scratch` for memory of one call, `out` for a result of the op line"}
FUNCTIONS = (*expression_values.FUNCTIONS, "has")
DTYPES = {dtype.value: dtype for dtype in DType}
SCALAR_TYPES = {scalar.value: scalar for scalar in ScalarType}
TENSOR_ATTRIBUTES = tuple(expression_values.TENSOR_ATTRIBUTES)
DEVICE_ATTRIBUTES = ("sms", "cc", "smem_block", "smem_sm", "l2")
LAUNCH_ATTRIBUTES = ("cluster", "cooperative", "pdl", "when")
MAP_OPTIONS = ("box", "shape", "stride", "step", "swizzle", "fill", "l2")
MAP_CHOICES = {"swizzle": (0, 32, 64, 128), "fill": (0, 1), "l2": (0, 64, 128, 256)}  # the others are lists
ACCEPT_FLAGS = ("strided", "unaligned")
OPERATOR_WORDS = ("if", "else", "and", "or", "not", "in")
LITERAL_WORDS = {"true": True, "false": False, "none": None, "True": True, "False": False, "None": None}

# Reserved names. Directive words, `stride`, `counter` and options of `tiled` are contextual keywords, so a tensor may
# be named `out` and a parameter `stride`.
_PLAN_WORDS = ("device", "dim3", "tiled", "zeroed")
TAKEN = frozenset(
    (*FUNCTIONS, *DTYPES, *SCALAR_TYPES, *LAUNCH_ATTRIBUTES, *OPERATOR_WORDS, *LITERAL_WORDS, *_PLAN_WORDS)
)

# Single-result functional operators; a `library` step may call nothing else.
LIBRARY_FUNCTIONS = (
    "aten.mm",
    "aten.bmm",
    "aten.mv",
    "aten.matmul",
    "aten.linear",
    "aten.addmm",
    "aten.addmv",
    "aten.addbmm",
    "aten.baddbmm",
    "aten._scaled_mm",
    "aten.convolution",
    "aten.conv1d",
    "aten.conv2d",
    "aten.conv3d",
    "aten.scaled_dot_product_attention",
)

MAX_PLAN_LINES = 400
MAX_LINE_CHARACTERS = 1000
MAX_NESTING = 20
MAX_EXPRESSION_HEIGHT = 100  # of the tree, so that it can be walked recursively
MAX_LAUNCHES = 128
MAX_SCRATCH_BUFFERS = 64
MAX_TUNE_COMBINATIONS = 4096
MAX_INT = 2**63 - 1

CONSTANT_NAME = re.compile(r"[A-Z][A-Z0-9_]*\Z")
# Upper-case names that the prelude or the compiler's own headers define as macros.
MACRO_NAME = re.compile(
    r"(?:INFINITY|NAN|NULL|EOF|CHAR_BIT|SIZE_MAX|FLT_\w+|DBL_\w+|M_\w+"
    r"|(?:CHAR|SCHAR|UCHAR|SHRT|USHRT|INT|UINT|LONG|ULONG|LLONG|ULLONG|U?INT(?:8|16|32|64|PTR|MAX))_(?:MAX|MIN))\Z"
)

# -- spellings of other languages --

DTYPE_SPELLINGS = {
    **{one.torch_name: one.value for one in DType if one is not DType.BOOL},
    **{f"{one.torch_name}_t": one.value for one in DType if one.value[0] in "iu"},
    **{one.cpp: one.value for one in DType if one.cpp.startswith("__")},
    "double": "f64",
    "half": "f16",
    "fp8e4m3": "f8e4m3",
    "fp8e5m2": "f8e5m2",
    **{f"fp{bits}": f"f{bits}" for bits in (16, 32, 64)},
}
TORCH_DTYPES = DTYPE_SPELLINGS | {"float": "f32", "int": "i32", "long": "i64", "short": "i16", "bool": "bool"}
FUNCTION_SPELLINGS = {
    "cdiv": "ceil_div",
    "ceildiv": "ceil_div",
    "ceilDiv": "ceil_div",
    "div_up": "ceil_div",
    "divup": "ceil_div",
    "ceil_divide": "ceil_div",
    "roundup": "round_up",
    "align_up": "round_up",
    "next_power_of_2": "next_pow2",
    "next_power_of_two": "next_pow2",
}
# `x.numel()` and `x.strides`: attributes of torch and numpy, with or without empty brackets.
ATTRIBUTE_SPELLINGS = {
    "size": "shape",
    "sizes": "shape",
    "shape": "shape",
    "strides": "stride",
    "stride": "stride",
    "numel": "numel",
    "nelement": "numel",
    "dim": "ndim",
    "ndim": "ndim",
    "ndimension": "ndim",
    "rank": "ndim",
    "element_size": "itemsize",
    "itemsize": "itemsize",
    "dtype": "dtype",
    "scalar_type": "dtype",
}
OPERATOR_SPELLINGS = {
    "**": "the plan has no power; multiply, or use next_pow2",
    "<<": "the plan has no shifts; multiply by a power of two",
    ">>": "the plan has no shifts; divide by a power of two",
    "&": "write `and`",
    "^": "the plan has no bit operations",
    "~": "write `not`",
    '"': "the plan has no strings",
    "'": "the plan has no strings",
    "{": "write `(` or `[`",
    "}": "write `)` or `]`",
    "@": "the plan has no decorators or matrix products",
    "\\": "a directive continues on the next //! line while a bracket is open; delete the `\\`",
}


def within_one_edit(found: str, known: str) -> bool:
    """Whether `found` is one edit from `known`: an inserted, deleted, wrong or swapped letter.

    Names that differ in a digit, in a one-letter part (`BLOCK_M`, `BLOCK_N`), or in one letter of a few (`sin`,
    `min`) differ on purpose.
    """
    if found == known or abs(len(found) - len(known)) > 1 or min(len(found), len(known)) < 3:
        return False
    start = 0
    while start < min(len(found), len(known)) and found[start] == known[start]:
        start += 1
    rest, meant = found[start:], known[start:]
    if any(character.isdigit() for character in (rest[:1] + meant[:1])):
        return False
    if len(rest) != len(meant):
        return rest == meant[1:] or rest[1:] == meant
    if rest[2:] == meant[2:] and rest[:2] == meant[1::-1]:
        return True
    one_letter_part = found[start - 1 : start] in ("", "_") and rest[1:2] in ("", "_")
    return rest[1:] == meant[1:] and len(found) >= 5 and not one_letter_part


def close_names(found: str, known: Iterable[str]) -> list[str]:
    """The known names within one edit."""
    return sorted({name for name in known if within_one_edit(found, name)})


def closest_name(found: str, known: Iterable[str]) -> str | None:
    """The only known name within one edit, if there is exactly one."""
    near = close_names(found, known)
    return near[0] if len(near) == 1 else None


def quoted(names: Iterable[str]) -> str:
    return ", ".join(names)


@cache
def contract() -> str:
    """The summary of the kernel file format for prompts; a test keeps it in step with the parser."""
    return resources.files("tilewright.kernel_file").joinpath("contract.md").read_text(encoding="utf-8")
