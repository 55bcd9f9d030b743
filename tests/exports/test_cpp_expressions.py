"""Random expressions of a plan: C++ gives the value that the evaluator gives, or refuses where it refuses.

Each expression is a kernel file of its own that is chosen by a number; its value is the size of the output, so nothing
has to be built or launched.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.exports.probing import Probe, agree, expected

from tilewright.exports.variants import Variants
from tilewright.kernel_file import KernelFile, KernelFileError, parse
from tilewright.records import PROFILES, DType, TensorSpec

H200 = PROFILES["H200"]
OP = "mixed(x, m?, which: int, n: int, p: float, b: bool, l: int[], s: float?) -> y"
FILES, CALLS = 60, 60


def integer(chance: random.Random, depth: int) -> str:
    if depth == 0:
        leaves = ["n", "x.numel", "x.ndim", "x.itemsize", "len(l)", "x.shape[-1]", "l[0]", "device.sms", "l[-1]"]
        return chance.choice([*leaves, str(chance.choice([0, 1, 2, 3, 7, 64, 2**31, 2**62]))])
    a, b = integer(chance, depth - 1), integer(chance, chance.randrange(depth))
    shapes = [
        f"({a} {chance.choice(['+', '-', '*', '/', '//', '%'])} {b})",
        f"{chance.choice(['min', 'max', 'ceil_div', 'round_up'])}({a}, {b})",
        f"{chance.choice(['log2', 'next_pow2'])}({a})",
        f"(-{a})",
        f"({a} if {condition(chance, depth - 1)} else {b})",
        f"prod([{a}, l, {b}])",
        f"len([{a}, x.shape[{chance.choice(['', '1', '-1', '0'])}:{chance.choice(['', '-1', '2'])}], {b}])",
        f"[{a}, {b}, l][{chance.choice(['0', '1', '-1', 'n', '5'])}]",
        f"(1 if {real(chance, depth - 1)} {chance.choice(['<', '>=', '==', '!='])} {real(chance, depth - 1)} else {a})",
    ]
    return chance.choice(shapes)


def real(chance: random.Random, depth: int) -> str:
    if depth <= 0:
        return chance.choice(["p", "0.5", "1e300", "sqrt(n)", "(s if has(s) else 2.0)", "1e-3"])
    a, b = real(chance, depth - 1), chance.choice([real(chance, depth - 1), integer(chance, 0)])
    sign = chance.choice(["+", "-", "*", "/"])
    return chance.choice([f"({a} {sign} {b})", f"sqrt({a})", f"max({a}, {b})", f"min({b}, {a})", f"(-{a})"])


def condition(chance: random.Random, depth: int) -> str:
    leaves = ["b", "has(m)", "x.dtype == f32", "x.dtype in [f16, bf16]", "n in l", "l == x.shape", "n > 3", "has(s)"]
    if depth <= 0:
        return chance.choice(leaves)
    a, b = condition(chance, depth - 1), condition(chance, 0)
    compared = f"{integer(chance, depth - 1)} {chance.choice(['<', '<=', '==', '!='])} {integer(chance, 0)}"
    return chance.choice([f"({a} and {b})", f"({a} or {b})", f"(not {a})", f"({compared})"])


def file_of(text: str, number: int) -> KernelFile | None:
    """The expression as a file; None where the static pass refuses it."""
    plan = f"""\
//! op      {OP}
//! need    which == {number}
//! let     value = {text}
//! out     y: u8[value if value >= 0 else -(value + 1), 1 if value >= 0 else 2]
//! launch  nothing<<<1, 1>>>(y) when false

__global__ void nothing(unsigned char* y) {{}}
"""
    try:
        return parse(plan, f"{number}.cu")
    except KernelFileError:
        return None


def random_call(chance: random.Random, which: int) -> dict[str, Any]:
    shape = tuple(chance.choice([0, 1, 2, 3, 8, 100]) for _ in range(chance.randrange(4)))
    spec = TensorSpec.contiguous(chance.choice([DType.F32, DType.F16, DType.BOOL]), shape)
    return {
        "x": spec,
        "m": chance.choice([None, spec]),
        "which": which,
        "n": chance.choice([0, 1, -1, 5, 64, 1000, 2**40, -(2**63), 2**63 - 1]),
        "p": chance.choice([0.0, -0.0, 1.5, -2.0, 1e-300, 1e300, float("inf"), float("nan")]),
        "b": chance.random() < 0.5,
        "l": tuple(chance.choice([0, 1, 2, 7, 2**33]) for _ in range(chance.randrange(4))),
        "s": chance.choice([None, 0.25]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_expressions_have_one_meaning(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    files: list[KernelFile] = []
    while len(files) < FILES:
        made = file_of(integer(chance, chance.choice([1, 2, 3])), len(files))
        if made is not None:
            files.append(made)
    variants = Variants((), (), tuple(({},) for _ in files), (), 0)
    probe = Probe(files, variants, tmp_path)
    kinds: list[str] = []
    for which in range(FILES):
        for _ in range(CALLS):
            call = random_call(chance, which)
            wanted, answer = expected(files, variants, call, H200), probe(call, H200)
            assert agree(answer, wanted), f"{files[which].text}\n{call}\n{answer}\n{wanted}"
            kinds += set(wanted) & {"refused", "error", "launches"}
    assert kinds.count("launches") > FILES * CALLS / 4
    assert kinds.count("refused") > FILES
