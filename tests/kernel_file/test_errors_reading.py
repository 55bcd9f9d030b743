"""Every error that reading a file can give: its code, its place and its remedy, one row per case.

The place is marked in the text itself with `@@`, which is removed before reading.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tilewright.kernel_file.parser import parse
from tilewright.kernel_file.problems import Code, KernelFileError, Problem

OP = "//! op      f(x, w?, eps: float, n: int, flag: bool, pads: int[2]) -> y\n"
OUT = "//! out     y: x.dtype[x.shape]\n"
LAUNCH = "//! launch  f<<<x.numel, 32>>>(x, y)\n"
CODE = "__global__ void f(const float* x, float* y) {}\n"


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    code: Code
    remedy: str
    fixable: bool = False  # has exactly one mechanical mend


def line(text: str) -> str:
    """A good plan with one more line before the launch."""
    return OP + OUT + "//! " + text + "\n" + LAUNCH + CODE


def code(text: str) -> str:
    """A good plan with these lines of code."""
    return OP + OUT + LAUNCH + text + "\n" + CODE


def read(text: str) -> tuple[Problem, ...]:
    with pytest.raises(KernelFileError) as caught:
        parse(text)
    return caught.value.problems


SYNTAX = [
    Case("missing value", line("let a =@@ "), Code.SYNTAX, "expected a value"),
    Case("trailing operator", line("let a = 1 +@@"), Code.SYNTAX, "expected a value"),
    Case("leftover", line("let a = 1 @@2"), Code.SYNTAX, "end of the line"),
    Case("single equals", line("need n @@= 1"), Code.SYNTAX, "`==`"),
    Case("chained comparison", line("need 1 < n @@< 3"), Code.SYNTAX, "no chaining"),
    Case("stray bracket", line("let a = 1@@)"), Code.SYNTAX, "nothing is open"),
    Case("wrong closer", line("let a = (1@@]"), Code.SYNTAX, "expected `)`"),
    Case("unclosed at next directive", line("let a = max@@(1,\n//! need n == 1"), Code.SYNTAX, "close it with `)`"),
    Case("unclosed list", line("need n in @@[1, 2"), Code.SYNTAX, "close it with `]`"),
    Case("unclosed launch", OP + OUT + "//! launch f@@<<<1, 32(x, y)\n" + CODE, Code.SYNTAX, "close it with `>>>`"),
    Case("strange character", line("let a = 1 @@& 2"), Code.SYNTAX, "write `and`"),
    Case("power", line("let a = 2 @@** 3"), Code.SYNTAX, "no power"),
    Case("string", line('let a = @@"x"'), Code.SYNTAX, "no strings"),
    Case("missing else", line("let a = 1 if flag@@"), Code.SYNTAX, "`else`"),
    Case("slice step", line("let a = x.shape[0:2@@:1]"), Code.SYNTAX, "without a step"),
    Case("hexadecimal", line("let a = @@0x10"), Code.SYNTAX, "write 16", True),
    Case("float suffix", line("let a = @@1.0f"), Code.SYNTAX, "write 1.0", True),
    Case("name from a digit", line("let a = @@3d"), Code.SYNTAX, "decimal"),
    Case("is not None", line("let a = 1 if w @@is not None else 2"), Code.SYNTAX, "has(x)", True),
    Case("not in", line("need n @@not in [1]"), Code.SYNTAX, "not a in b"),
    Case("comment by slashes", line("let a = x.numel @@// number of elements"), Code.SYNTAX, "start with #", True),
    Case("buffer without dtype", line("scratch t: @@[1]"), Code.SYNTAX, "a dtype"),
    Case("buffer without sizes", line("scratch t: f32@@"), Code.SYNTAX, "`[`"),
    Case("zeroed counter", line("scratch t: i32[1] zeroed @@counter"), Code.SYNTAX, "end of the line"),
    Case("stride of scratch", line("scratch t: f32[1] @@stride [1]"), Code.SYNTAX, "end of the line"),
    Case("empty stride", OP + "//! out y: f32[n] stride [@@]\n" + LAUNCH + CODE, Code.SYNTAX, "a stride"),
    Case("tune with commas", line("tune A = 1@@, 2"), Code.SYNTAX, "`|`", True),
    Case("tune of a name", line("tune A = @@n"), Code.SYNTAX, "literal"),
    Case("accept word", line("accept x: @@stridden"), Code.SYNTAX, "`strided` and `unaligned`"),
    Case("map function", line("map m = @@im2col(x, box=[1])"), Code.SYNTAX, "tiled"),
    Case("map option", line("map m = tiled(x, box=[1], @@interleave=16)"), Code.SYNTAX, "known: box"),
    Case("map option near", line("map m = tiled(x, box=[1], @@swizle=64)"), Code.SYNTAX, "known: box", True),
    Case("map option twice", line("map m = tiled(x, box=[1], @@box=[1])"), Code.SYNTAX, "once"),
    Case("map without box", line("map m = tiled(x, swizzle=64@@)"), Code.SYNTAX, "box="),
    Case("no block", OP + OUT + "//! launch f<<<1@@>>>(x, y)\n" + CODE, Code.SYNTAX, "grid, block"),
    Case("stream", OP + OUT + "//! launch f<<<1, 32, 0@@, n>>>(x, y)\n" + CODE, Code.SYNTAX, "owns the stream"),
    Case(
        "dim3 of four",
        OP + OUT + "//! launch f<<<@@dim3(1, 1, 1, 1), 32>>>(x, y)\n" + CODE,
        Code.SYNTAX,
        "one to three",
    ),
    Case("empty template", OP + OUT + "//! launch f<@@><<<1, 32>>>(x, y)\n" + CODE, Code.SYNTAX, "template argument"),
    Case(
        "unknown attribute", OP + OUT + "//! launch f<<<1, 32>>>(x, y) @@stream(1)\n" + CODE, Code.SYNTAX, "cooperative"
    ),
    Case("near attribute", OP + OUT + "//! launch f<<<1, 32>>>(x, y) @@wen flag\n" + CODE, Code.SYNTAX, "when", True),
    Case(
        "attribute twice",
        OP + OUT + "//! launch f<<<1, 32>>>(x, y) cooperative @@cooperative\n" + CODE,
        Code.SYNTAX,
        "once",
    ),
    Case(
        "cluster of four",
        OP + OUT + "//! launch f<<<1, 32>>>(x, y) @@cluster(1, 1, 1, 1)\n" + CODE,
        Code.SYNTAX,
        "one to three",
    ),
    Case("word as value", line("let a = @@else"), Code.SYNTAX, "expected a value"),
    Case("taken word as value", line("let a = @@zeroed + 1"), Code.SYNTAX, "another use"),
    Case("tensor type", "//! op f(x: @@Tensor) -> y\n" + OUT + LAUNCH + CODE, Code.SYNTAX, "its name alone", True),
    Case("tensor default", "//! op f(x @@= 1) -> y\n" + OUT + LAUNCH + CODE, Code.SYNTAX, "`x?`"),
    Case("not ASCII", line("let a = 1 # caf@@\xe9"), Code.SYNTAX, "plain ASCII"),
    Case("trailing backslash", line("let a = 1 @@\\"), Code.SYNTAX, "bracket is open", True),
    Case(
        "plan in a block comment", OP + OUT + "/*\n@@//! need flag\n*/\n" + LAUNCH + CODE, Code.SYNTAX, "out of /* */"
    ),
    Case(
        "plan after a comment", OP + OUT + "/* a */ @@//! need flag\n" + LAUNCH + CODE, Code.SYNTAX, "starts with //!"
    ),
    Case("unknown directive", line("@@stream s = 1"), Code.UNKNOWN_DIRECTIVE, "known: version, op"),
    Case("a directive that is gone", line("@@save t: f32[1]"), Code.UNKNOWN_DIRECTIVE, "say `scratch`"),
    Case("near directive", line("@@neeed flag"), Code.UNKNOWN_DIRECTIVE, "write need", True),
    Case("unknown function", line("let a = @@sin(n)"), Code.UNKNOWN_FUNCTION, "known: ceil_div"),
    Case("triton's name", line("let a = @@cdiv(n, 2)"), Code.UNKNOWN_FUNCTION, "write ceil_div", True),
    Case("near function", line("let a = @@round_upp(n, 2)"), Code.UNKNOWN_FUNCTION, "write round_up", True),
    Case("dim3 in an expression", line("let a = @@dim3(1)"), Code.UNKNOWN_FUNCTION, "grid or block"),
    Case("method", line("let a = x.@@size(0)"), Code.UNKNOWN_FUNCTION, "write .shape[0]", True),
    Case("unknown method", line("let a = x.@@sum()"), Code.UNKNOWN_FUNCTION, "attributes only"),
]

SHAPE = [
    Case("no plan", "@@" + CODE, Code.OP_FIRST, "//! op"),
    Case("empty file", "@@", Code.OP_FIRST, "//! op"),
    Case("op not first", "//! @@let a = 1\n" + OP + OUT + LAUNCH + CODE, Code.OP_FIRST, "first directive"),
    Case("two ops", OP + OUT + "//! @@op g(x) -> y\n" + LAUNCH + CODE, Code.OP_FIRST, "exactly one"),
    Case("no launch", "//! @@op f(x) -> y\n//! out y: f32[1]\n" + CODE, Code.NO_LAUNCH, "//! launch"),
    Case("plan after code", OP + OUT + LAUNCH + CODE + "  @@//! need flag\n", Code.PLAN_AFTER_CODE, "above line 4"),
    Case("version 2", "//! version @@2\n" + OP + OUT + LAUNCH + CODE, Code.VERSION, "version 1"),
    Case("late version", OP + "//! @@version 1\n" + OUT + LAUNCH + CODE, Code.VERSION, "first plan line"),
    Case("pdl alone", OP + OUT + "//! launch @@f<<<1, 32>>>(x, y) pdl\n" + CODE, Code.PDL, "just before"),
    Case(
        "pdl cooperative",
        line("launch f<<<1, 32>>>(x, y)\n//! launch @@f<<<1, 32>>>(x, y) pdl cooperative"),
        Code.PDL,
        "drop one",
    ),
    Case(
        "pdl after library",
        line("scratch t: f32[1]\n//! library t = aten.mm(x, x)\n//! launch @@f<<<1, 32>>>(t, y) pdl"),
        Code.PDL,
        "just before",
    ),
    Case(
        "unknown library", line("scratch t: f32[1]\n//! library @@t = aten.add_(x, x)"), Code.LIBRARY, "known: aten.mm"
    ),
    Case("library into a parameter", line("library @@x = aten.mm(x, x)"), Code.LIBRARY, "scratch x"),
    Case("library into nothing", line("library @@t = aten.mm(x, x)"), Code.LIBRARY, "scratch t"),
    Case(
        "library into zeros",
        line("scratch t: f32[1] zeroed\n//! library @@t = aten.mm(x, x)"),
        Code.LIBRARY,
        "drop `zeroed`",
    ),
]

NAMES = [
    Case("unknown name", line("let a = @@width + 1"), Code.UNKNOWN_NAME, "comments start with #"),
    Case(
        "near name",
        "//! op f(rows: int, x) -> y\n" + OUT + "//! let a = @@row\n" + LAUNCH + CODE,
        Code.UNKNOWN_NAME,
        "write rows",
        True,
    ),
    Case("used too early", line("let a = @@b, b = 1"), Code.UNKNOWN_NAME, "defined on line 3"),
    Case("dtype of torch", line("need x.dtype == @@torch.float32"), Code.UNKNOWN_NAME, "write f32", True),
    Case("dtype of numpy", line("need x.dtype == @@float16"), Code.UNKNOWN_NAME, "write f16", True),
    Case("unknown dtype of torch", line("need x.dtype == @@torch.complex64"), Code.UNKNOWN_NAME, "dtypes are f64"),
    Case("dtype of a buffer", line("scratch t: @@half[1]"), Code.UNKNOWN_NAME, "write f16", True),
    Case("tensor attribute", line("let a = x.@@strides"), Code.UNKNOWN_NAME, "write .stride", True),
    Case("no such attribute", line("let a = x.@@data_ptr"), Code.UNKNOWN_NAME, ".shape .stride"),
    Case("device attribute", line("let a = device.@@clock_rate"), Code.UNKNOWN_NAME, ".sms .cc"),
    Case("near device attribute", line("let a = device.@@sm"), Code.UNKNOWN_NAME, ".sms .cc"),
    Case("one-word comment", line("let a = x.numel @@// elements"), Code.SYNTAX, "start with #", True),
    Case("accept of nothing", line("accept @@z: strided"), Code.UNKNOWN_NAME, "tensor parameter: x, w"),
    Case("map of nothing", line("map @@m = tiled(z, box=[1])"), Code.UNKNOWN_NAME, "defined above"),
    Case("has of nothing", line("need has(@@mask)"), Code.UNKNOWN_NAME, "define it above"),
    Case(
        "no such kernel",
        OP + OUT + "//! launch @@kernel<<<1, 32>>>(x, y)\n" + CODE,
        Code.UNKNOWN_NAME,
        "the code has: f",
    ),
    Case(
        "near kernel",
        OP + OUT + "//! launch @@sil<<<1, 32>>>(x, y)\n" + CODE.replace(" f(", " silu("),
        Code.UNKNOWN_NAME,
        "silu",
        True,
    ),
    Case("defined twice", line("let a = 1, @@a = 2"), Code.NAME_TAKEN, "defined once"),
    Case("a parameter's name", line("let @@x = 2"), Code.NAME_TAKEN, "another name"),
    Case(
        "a result's name",
        OP + "//! let @@y = 2\n" + OUT.replace("out ", "out ") + LAUNCH + CODE,
        Code.NAME_TAKEN,
        "another name",
    ),
    Case("a word", line("let @@min = 2"), Code.NAME_TAKEN, "another name"),
    Case(
        "a parameter called device",
        "//! op f(@@device, x) -> y\n" + OUT + LAUNCH + CODE,
        Code.NAME_TAKEN,
        "another name",
    ),
    Case(
        "the same result twice", "//! @@op f(x) -> y, y\n" + OUT + LAUNCH + CODE, Code.NAME_TAKEN, "rename the result"
    ),
    Case(
        "a result like a parameter",
        "//! @@op f(x, y!) -> y\n//! let a = 1\n" + LAUNCH + CODE,
        Code.NAME_TAKEN,
        "rename",
    ),
    Case("accept twice", line("accept x: strided\n//! accept @@x: unaligned"), Code.NAME_TAKEN, "on line 3"),
    Case("unused tune", line("tune @@A = 1 | 2"), Code.UNUSED, "drop the line"),
    Case("unused const", line("const @@A = 1"), Code.UNUSED, "drop the line"),
    Case("unused scratch", line("scratch @@t: f32[1]"), Code.UNUSED, "pass it to a launch"),
    Case(
        "scratch only asked for its size",
        line("scratch @@t: f32[1]\n//! let a = t.numel"),
        Code.UNUSED,
        "pass it to a launch",
    ),
    Case("unused map", line("map @@m = tiled(x, box=[1])"), Code.UNUSED, "pass it to a launch"),
    Case(
        "unused out",
        OP + "//! out @@y: f32[1]\n" + LAUNCH.replace("(x, y)", "(x)") + CODE,
        Code.UNUSED,
        "pass it to a launch",
    ),
]

TYPES = [
    Case("int plus bool", line("let a = 1 @@+ flag"), Code.TYPE, "numbers"),
    Case("float modulo", line("let a = eps @@% 2"), Code.TYPE, "for ints"),
    Case("float floor division", line("let a = 1 @@// eps"), Code.TYPE, "for ints"),
    Case("dtype plus", line("let a = f32 @@+ 1"), Code.TYPE, "numbers"),
    Case("minus bool", line("let a = @@-flag"), Code.TYPE, "numbers only"),
    Case("not int", line("need not @@n"), Code.TYPE, "takes bool"),
    Case("and of ints", line("need flag and @@n"), Code.TYPE, "takes bool"),
    Case("need of an int", line("need @@n"), Code.TYPE, "takes bool"),
    Case("when of an int", OP + OUT + "//! launch f<<<1, 32>>>(x, y) when @@n\n" + CODE, Code.TYPE, "takes bool"),
    Case("dtype against int", line("need x.dtype @@== 1"), Code.TYPE, "one type"),
    Case("order of dtypes", line("need x.dtype @@< f32"), Code.TYPE, "have an order"),
    Case("list against int", line("need x.shape @@== 1"), Code.TYPE, "one type"),
    Case("in a number", line("need 1 @@in n"), Code.TYPE, "is a list"),
    Case("in a list of dtypes", line("need 1 @@in [f16]"), Code.TYPE, "type of the left"),
    Case("tensors compared", line("need x @@== x"), Code.TYPE, "compare numbers"),
    Case("compared with none", line("need w @@!= none"), Code.TYPE, "has(x)", True),
    Case("arms of int and float", line("let a = 1 @@if flag else 1.0"), Code.TYPE, "1.0 for 1"),
    Case("arms of int and bool", line("let a = 1 @@if flag else true"), Code.TYPE, "one type"),
    Case("condition of int", line("let a = 1 if @@n else 2"), Code.TYPE, "takes bool"),
    Case("mixed list", line("need n in [1, @@f32]"), Code.TYPE, "a list has one type"),
    Case("tensor in a list", line("let a = [@@x]"), Code.TYPE, "a list holds"),
    Case("index of a tensor", line("let a = x@@[0]"), Code.TYPE, "never reads a tensor's content"),
    Case("index of an int", line("let a = n@@[0]"), Code.TYPE, "only lists"),
    Case("float index", line("let a = x.shape[@@1.0]"), Code.TYPE, "takes int"),
    Case("attribute of an int", line("let a = n.@@shape"), Code.TYPE, "only tensors"),
    Case("itemsize of a dtype", line("let a = x.dtype.@@itemsize"), Code.TYPE, "sizeof"),
    Case("too many arguments", line("let a = @@log2(1, 2)"), Code.TYPE, "takes 1 argument"),
    Case("no arguments", line("let a = @@min()"), Code.TYPE, "one or more"),
    Case("min of a list", line("let a = min(@@x.shape)".replace("@@x.", "x.@@")), Code.TYPE, "takes int or float"),
    Case("ceil_div of a float", line("let a = ceil_div(@@eps, 2)"), Code.TYPE, "takes int"),
    Case("sizeof a tensor", line("let a = sizeof(@@x)"), Code.TYPE, "takes dtype"),
    Case("prod of an int", line("let a = prod(@@n)"), Code.TYPE, "takes a list"),
    Case("len of a tensor", line("let a = len(@@x)"), Code.TYPE, "takes a list"),
    Case("has of a given one", line("need has(@@x)"), Code.TYPE, "marked `?`"),
    Case("has of an expression", line("need has(x.@@shape)"), Code.TYPE, "name of an optional"),
    Case("let of none", line("let a = @@none"), Code.TYPE, "a let names"),
    Case("let of a tensor", line("let a = @@x"), Code.TYPE, "a let names"),
    Case("let of the device", line("let a = @@device"), Code.TYPE, "a let names"),
    Case("float size", line("scratch t: f32[@@eps]"), Code.TYPE, "is an int"),
    Case("size of dtype", line("scratch t: f32[@@f32]"), Code.TYPE, "is an int"),
    Case("element type of int", line("scratch t: @@n[1]"), Code.TYPE, "takes dtype"),
    Case("float counter", line("scratch t: @@f32[1] counter"), Code.TYPE, "counters are integers"),
    Case("const of a list", line("const A = x.@@shape"), Code.TYPE, "takes int or float"),
    Case("mixed choices", line("tune @@A = 1 | true"), Code.TYPE, "one type"),
    Case("float choice", line("tune A = @@1.5"), Code.TYPE, "int or bool"),
    Case("box of an int", line("map m = tiled(x, box=@@64)"), Code.TYPE, "a list of int"),
    Case("swizzle of a list", line("map m = tiled(x, box=[1], swizzle=@@[1])"), Code.TYPE, "takes int"),
    Case("map of an int", line("map @@m = tiled(n, box=[1])"), Code.TYPE, "a tensor"),
    Case("accept of an int", line("accept @@n: strided"), Code.TYPE, "tensor parameter: x, w"),
    Case("grid of a float", OP + OUT + "//! launch f<<<@@eps, 32>>>(x, y)\n" + CODE, Code.TYPE, "is an int"),
    Case("block of a list", OP + OUT + "//! launch f<<<1, x.@@shape>>>(x, y)\n" + CODE, Code.TYPE, "is an int"),
    Case(
        "shared memory of a bool", OP + OUT + "//! launch f<<<1, 32, @@flag>>>(x, y)\n" + CODE, Code.TYPE, "is an int"
    ),
    Case(
        "cluster of a bool", OP + OUT + "//! launch f<<<1, 32>>>(x, y) cluster(@@flag)\n" + CODE, Code.TYPE, "is an int"
    ),
    Case(
        "float template argument",
        OP + OUT + "//! launch f<@@eps><<<1, 32>>>(x, y)\n" + CODE,
        Code.TYPE,
        "int or bool or dtype",
    ),
    Case(
        "dtype as argument",
        OP + OUT + "//! launch f<<<1, 32>>>(x, y, x.@@dtype)\n" + CODE,
        Code.TYPE,
        "template argument",
    ),
    Case(
        "device as argument", OP + OUT + "//! launch f<<<1, 32>>>(x, y, @@device)\n" + CODE, Code.TYPE, "arguments are"
    ),
    Case(
        "map to a library",
        line("map m = tiled(x, box=[1])\n//! scratch t: f32[1]\n//! library t = aten.mm(x, @@m)"),
        Code.TYPE,
        "pass tensors",
    ),
    Case(
        "default of another type", "//! op f(x, n: int = @@1.5) -> y\n" + OUT + LAUNCH + CODE, Code.TYPE, "int literal"
    ),
    Case("default none", "//! op f(x, n: int = @@none) -> y\n" + OUT + LAUNCH + CODE, Code.TYPE, "`?`"),
    Case(
        "default of another length", "//! op f(x, n: int[2] = @@[1]) -> y\n" + OUT + LAUNCH + CODE, Code.TYPE, "write 2"
    ),
]

RULES = [
    Case("missing out", "//! @@op f(x) -> y, z\n" + OUT + LAUNCH + CODE, Code.OUT, "//! out z"),
    Case("no results at all", "//! @@op f(x)\n//! launch f<<<1, 32>>>(x)\n" + CODE, Code.OUT, "`!`"),
    Case(
        "out of no result",
        line("out @@z: f32[1]\n//! launch f<<<1, 32>>>(z)"),
        Code.OUT,
        "results of the op line are: y",
    ),
    Case(
        "scratch of a result",
        "//! op f(x) -> y, z\n" + OUT + "//! scratch @@z: f32[1]\n//! launch f<<<1, 32>>>(y, z)\n" + CODE,
        Code.OUT,
        "with `out`",
    ),
    Case(
        "out by tune",
        OP + "//! tune A = 1 | 2\n//! let b = A * 2\n//! out @@y: f32[b]\n" + LAUNCH + CODE,
        Code.OUT,
        "`let` only",
    ),
    Case("out by device", OP + "//! out @@y: f32[device.sms]\n" + LAUNCH + CODE, Code.OUT, "`let` only"),
    Case(
        "out by the scratch of a tune",
        OP
        + "//! tune A = 1 | 2\n//! scratch t: f32[A]\n//! out @@y: f32[t.numel]\n//! launch f<<<1, 32>>>(t, y)\n"
        + CODE,
        Code.OUT,
        "every tuning",
    ),
    Case("lower-case tune", line("tune @@warps = 1 | 2\n//! need warps > 0"), Code.CONST, "upper case: WARPS"),
    Case("lower-case const", line("const @@cols = 1\n//! need cols > 0"), Code.CONST, "upper case: COLS"),
    Case(
        "const of a float parameter",
        line("let e = eps * 2.0\n//! const @@E = 1 if e > 1.0 else 2\n//! need E > 0"),
        Code.CONST,
        "launch argument",
    ),
    Case("const like a macro", line("const @@FLT_MAX = 1\n//! need FLT_MAX > 0"), Code.CONST, "another name"),
    Case("define", line("const A = 1").replace(CODE, "#define @@A 2\n" + CODE), Code.CONST, "constexpr already"),
    Case(
        "undef",
        line("const A = 1").replace(CODE, "#undef @@A\nint g(int a = A);\n" + CODE),
        Code.CONST,
        "constexpr already",
    ),
    Case(
        "if",
        line("tune A = 1 | 2\n//! need A > 0").replace(CODE, "#if @@A == 1\n#endif\n" + CODE),
        Code.CONST,
        "if constexpr",
    ),
    Case(
        "ifdef",
        line("tune A = 1 | 2\n//! need A > 0").replace(CODE, "#ifdef @@A\n#endif\n" + CODE),
        Code.CONST,
        "if constexpr",
    ),
    Case(
        "elif",
        line("tune A = 1 | 2\n//! need A > 0").replace(CODE, "#if 0\n#elif defined(@@A)\n#endif\n" + CODE),
        Code.CONST,
        "if constexpr",
    ),
    Case("int of 70 bits", line("let a = @@1180591620717411303424"), Code.VALUE, "2^63"),
    Case("float beyond range", line("let a = @@1e999"), Code.VALUE, "1.8e308"),
    Case("long line", line("let a = 1 " + "+ 1 " * 246 + "+ @@1 + 1"), Code.LIMIT, "at most 1000"),
    Case(
        "many lines",
        OP + OUT + "//! need flag\n" * 398 + "@@//! need flag\n" + LAUNCH + CODE,
        Code.LIMIT,
        "`let` lines",
    ),
    Case("deep brackets", line("let a = " + "(" * 20 + "@@(1" + ")" * 21), Code.LIMIT, "with `let`"),
    Case("deep minus", line("let a = " + "-" * 20 + "@@-1"), Code.LIMIT, "with `let`"),
    Case("deep not", line("need " + "not " * 20 + "@@not flag"), Code.LIMIT, "with `let`"),
    Case("long chain", line("let a = 1" + " + 1" * 99 + " @@+ 1"), Code.LIMIT, "with `let`"),
    Case(
        "many launches",
        OP + OUT + LAUNCH * 128 + LAUNCH.replace("launch  ", "launch  @@") + CODE,
        Code.LIMIT,
        "one kernel",
    ),
    Case(
        "many scratch buffers",
        OP
        + OUT
        + "".join(f"//! scratch {'@@' if i == 64 else ''}t{i}: f32[1]\n" for i in range(65))
        + "//! launch f<<<1, 32>>>(y, "
        + ", ".join(f"t{i}" for i in range(65))
        + ")\n"
        + CODE,
        Code.LIMIT,
        "share one",
    ),
    Case(
        "many combinations",
        OP
        + OUT
        + "".join(f"//! tune {'@@' if i == 12 else ''}T{i} = 1 | 2\n//! need T{i} > 0\n" for i in range(13))
        + LAUNCH
        + CODE,
        Code.LIMIT,
        "at most 4096",
    ),
    Case("huge file", "@@" + CODE + "/" * 1_000_001, Code.LIMIT, "at most 1000000"),
    Case("swizzle", line("map m = tiled(x, box=[1], swizzle=@@16)"), Code.MAP, "0 32 64 128"),
    Case("fill", line("map m = tiled(x, box=[1], fill=@@2)"), Code.MAP, "0 1"),
    Case("l2", line("map m = tiled(x, box=[1], l2=@@512)"), Code.MAP, "0 64 128 256"),
]


@pytest.mark.parametrize("case", [*SYNTAX, *SHAPE, *NAMES, *TYPES, *RULES], ids=lambda case: case.name)
def test_error(case: Case) -> None:
    before, marker, _ = case.text.partition("@@")
    assert marker
    text = case.text.replace("@@", "")
    place = (before.count("\n") + 1, len(before) - before.rfind("\n"))
    if case.name == "huge file":
        place = (0, 0)
    problems = [problem for problem in read(text) if problem.code is case.code]
    assert problems, read(text)
    assert (problems[0].line, problems[0].column) == place
    assert case.remedy in problems[0].remedy
    assert problems[0].found
    assert (problems[0].autofix is not None) == case.fixable


# A result called like a parameter can have no out line, which is another problem.
_SEVERAL = {"a result like a parameter"}


@pytest.mark.parametrize("case", [*SYNTAX, *SHAPE, *NAMES, *TYPES, *RULES], ids=lambda case: case.name)
def test_one_slip_is_one_message(case: Case) -> None:
    """Other problems than the case's own come only from names left unused, never from its own slip."""
    others = [problem for problem in read(case.text.replace("@@", "")) if problem.code not in (case.code, Code.UNUSED)]
    assert not others or case.name in _SEVERAL
