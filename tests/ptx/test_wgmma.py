"""wgmma: forms against numpy and, bit by bit, against a GPU; what is in flight; warps that must go together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.golden_wgmma import (
    Array,
    Form,
    forms,
    identity,
    image_of,
    inputs_of,
    kernel_of,
    left_registers,
    registers_of,
    smem_of,
    sums_of,
    tile_bytes,
    wgmma_code,
)
from tests.ptx.cuda_kernels import In, Ran, clean, program_of, ptx_of, run
from tests.ptx.harness import prepare, shown

from tilewright.kernel_file import parse
from tilewright.ptx.launching import LaunchOptions
from tilewright.ptx.program import load_program
from tilewright.ptx.syntax import UnsupportedPtx
from tilewright.records import PROFILES, FindingKind

_KINDS = {"f16": np.float16, "s8": np.int8, "u8": np.uint8, "tf32": np.float32}


def _values(kind: str, rows: int, random: np.random.Generator) -> tuple[Array, Array]:
    """Numbers of an operand as float64, [rows, k], and their bytes, [rows, 32]."""
    depth = {"b1": 256}.get(kind, 32 if kind in ("s8", "u8", "e4m3", "e5m2") else 8 if kind == "tf32" else 16)
    if kind == "b1":
        bits = random.integers(0, 2, (rows, depth))
        return bits.astype(np.float64), np.packbits(bits.astype(np.uint8), axis=1, bitorder="little")
    whole = random.integers(0 if kind == "u8" else -8, 9, (rows, depth))
    if kind == "bf16":
        words = (whole.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return whole.astype(np.float64), words.view(np.uint8)
    if kind in ("e4m3", "e5m2"):
        words = whole.astype(np.float16).view(np.uint16)
        if kind == "e5m2":
            whole = np.sign(whole) * 2 ** np.clip(np.abs(whole), 0, 3)
            return whole.astype(np.float64), (whole.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)
        magnitude = (words & 0x7FFF).astype(np.int32)
        byte = np.where(magnitude, (magnitude >> 7) - (8 << 3), 0) | (words >> 8 & 0x80)
        return whole.astype(np.float64), byte.astype(np.uint8)
    return whole.astype(np.float64), whole.astype(_KINDS[kind]).view(np.uint8)


def _multiplied(form: Form) -> tuple[Array, Array]:
    random = np.random.default_rng(1)
    a, a_bytes = _values(form.a, 64, random)
    b, b_bytes = _values(form.b, form.columns, random)
    before = random.integers(-99, 100, (64, form.columns))
    arguments = {
        "image": In(np.frombuffer(image_of(form, a_bytes, b_bytes), np.uint8)),
        "left": In(left_registers(a_bytes)),
        "start": In(registers_of(form, before)),
        "out": np.zeros((form.sums, 128), np.uint32),
    }
    ran = clean(program_of(kernel_of(form), "sm_90a"), arguments, block=(128,), smem=smem_of(form))
    sign = form.signs[0] * form.signs[1]
    expected = sign * (a @ b.T) + (before if form.adds else 0)
    return sums_of(form, ran["out"].reshape(form.sums, 128)), expected


BASE = Form(16, "bf16", "bf16", "f32")
FORMS = [
    replace(BASE, a="f16", b="f16", columns=24, swizzle=32, transposed=(True, True), signs=(-1, 1)),
    replace(BASE, a="e4m3", b="e5m2", d="f16", in_registers=True),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.label)
def test_small_integers_come_out_exactly(form: Form) -> None:
    actual, expected = _multiplied(form)
    np.testing.assert_array_equal(actual, expected)


# -- beside a GPU --

GOLDEN = Path(__file__).parent / "golden" / "h200_wgmma.npz"
RECORDED = forms()


def _agrees(form: Form) -> None:
    with np.load(GOLDEN) as stored:
        recorded = stored[form.label]
    inputs = inputs_of(form)
    arguments = {
        "image": In(np.frombuffer(image_of(form, inputs.a, inputs.b), np.uint8)),
        "left": In(left_registers(inputs.a)),
        "start": In(registers_of(form, inputs.start)),
        "out": np.zeros((form.sums, 128), np.uint32),
    }
    ran = clean(program_of(kernel_of(form), "sm_90a"), arguments, block=(128,), smem=smem_of(form))
    np.testing.assert_array_equal(ran["out"].reshape(form.sums, 128), recorded)


@pytest.mark.slow
def test_the_recorded_forms_are_these() -> None:
    with np.load(GOLDEN) as stored:
        assert str(stored["identity"]) == identity(), "the forms have changed: record them again"


@pytest.mark.parametrize("form", [one for one in RECORDED if one.columns == 8][1:], ids=lambda form: form.label)
def test_the_bits_are_those_of_the_gpu(form: Form) -> None:
    _agrees(form)


@pytest.mark.slow
@pytest.mark.parametrize("form", RECORDED, ids=lambda form: form.label)
def test_the_bits_of_every_form_are_those_of_the_gpu(form: Form) -> None:
    _agrees(form)


# -- what goes wrong --

SLOW = pytest.mark.slow
SMALL = Form(8, "bf16", "bf16", "f32", swizzle=0)
FENCE = 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'
COMMIT = 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'
WAIT = 'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");'
SHOW = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
LATE = f"__syncthreads(); {WAIT}"
HALF = "if (threadIdx.x % 32 < 16) { MULTIPLY }"
# Two products, one after the other, of tiles that are written anew in between; each step on a line of its own.
STEPS = {
    "fill": "FILL(0x3f803f80u);",
    "show": SHOW,
    "meet": "__syncthreads();",
    "scale": "for (int j = 0; j < 4; j++) d[j] = __uint_as_float(start[j]) * 2;",
    "fence": FENCE,
    "first": "MULTIPLY",
    "commit": COMMIT,
    "wait": WAIT,
    "arrive": "__syncthreads();",
    "fill again": "FILL(0x40004000u);",
    "show again": SHOW,
    "meet again": "__syncthreads();",
    "double": "for (int j = 0; j < 4; j++) d[j] *= 2;",
    "fence again": FENCE,
    "second": "MULTIPLY",
    "commit again": COMMIT,
    "wait again": WAIT,
    "store": "for (int j = 0; j < 4; j++) out[j * 128 + threadIdx.x] = d[j];",
}
_BROKEN = """
extern __shared__ __align__(1024) unsigned char tiles[];
#define FILL(ones) \\
  for (int j = threadIdx.x; j < {bytes} / 4; j += blockDim.x) ((unsigned*)tiles)[j] = ones
extern "C" __global__ void k(const unsigned* start, float* out) {{
  unsigned at = (unsigned)__cvta_generic_to_shared(tiles);
  float d[4];
{steps}
}}
"""


def _steps(form: Form = SMALL, **changes: str) -> tuple[str, dict[str, int]]:
    """The kernel with some of its steps changed, and the line of each step."""
    steps = STEPS | {name.replace("_", " "): text for name, text in changes.items()}
    multiply = wgmma_code(form, "at", f"at + {tile_bytes(64)}").replace('"+r"', '"+f"')
    head = _BROKEN.split("{steps}")[0].count("\n") + 1
    lines = {name: head + number for number, name in enumerate(steps)}
    text = "\n".join("  " + text.replace("MULTIPLY", multiply) for text in steps.values())
    return _BROKEN.format(bytes=smem_of(form), steps=text), lines


def _ran(source: str, block: int = 128) -> Ran:
    arguments = {"start": In(np.full(4, 0x3F800000, np.uint32)), "out": np.zeros((4, 128), np.float32)}
    return run(program_of(source, "sm_90a"), arguments, block=(block,), smem=smem_of(SMALL))


def test_steps_in_order_find_nothing() -> None:
    source, _ = _steps()
    ran = _ran(source)
    assert ran.result.findings == ()
    np.testing.assert_array_equal(ran["out"], (2 + 16) * 2 + 16 * 4)


@pytest.mark.parametrize(
    ("changes", "kind", "line", "other"),
    [
        ({"wait_again": ""}, FindingKind.WGMMA_IN_FLIGHT, "store", "second"),
        pytest.param({"commit_again": ""}, FindingKind.WGMMA_IN_FLIGHT, "store", "second", marks=SLOW),
        pytest.param({"wait": ""}, FindingKind.WGMMA_IN_FLIGHT, "double", "first", marks=SLOW),
        pytest.param({"fence": ""}, FindingKind.WGMMA_NOT_FENCED, "first", None, marks=SLOW),
        ({"fence_again": ""}, FindingKind.WGMMA_NOT_FENCED, "second", None),
        ({"double": "", "wait": "", "arrive": LATE}, None, None, None),
        pytest.param({"arrive": ""}, None, None, None, marks=SLOW),  # what one warp has waited for, all four have done
        ({"wait": "", "double": "", "meet_again": LATE}, FindingKind.RACE_SHARED, "fill again", "first"),
        ({"show": ""}, FindingKind.NO_PROXY_FENCE, "first", "fill"),
        pytest.param({"show_again": ""}, FindingKind.NO_PROXY_FENCE, "second", "fill again", marks=SLOW),
        ({"first": "if (threadIdx.x < 64) { MULTIPLY } else { MULTIPLY }"}, FindingKind.WARPGROUP, "first", "first"),
        pytest.param({"first": HALF}, FindingKind.SHUFFLE_MASK, "first", None, marks=SLOW),
        ({"commit": f"if (threadIdx.x >= 96) return; {COMMIT}"}, FindingKind.WARPGROUP, "wait", None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_at_its_line(
    changes: dict[str, str], kind: FindingKind | None, line: str, other: str | None
) -> None:
    source, lines = _steps(**changes)
    findings = _ran(source).result.findings
    if kind is None:
        assert findings == ()
        return
    found = [one for one in findings if one.kind is kind]
    assert found, findings
    assert found[0].line == lines[line]
    if other is not None:
        assert found[0].other_line == lines[other]


def test_the_warps_of_a_warpgroup_come_to_a_fence_together() -> None:
    """CUTLASS's tutorial relies on it, so that what each warp wrote is there; that nothing promises it is found."""
    right, alone = _ran(_steps()[0]), _ran(_steps(meet="")[0])
    assert np.array_equal(alone["out"], right["out"])
    assert {one.kind for one in alone.result.findings} == {FindingKind.RACE_SHARED}


def test_registers_of_a_are_read_until_the_wait() -> None:
    form = replace(SMALL, in_registers=True)
    for text, kinds in (("add.u32 %4, %4, 1; ", {FindingKind.WGMMA_IN_FLIGHT}), ("", set())):
        kernel = kernel_of(form).replace('p, 1, 1, 0; }"', f'p, 1, 1, 0; {text}}}"')
        arguments = {
            "image": In(np.zeros(smem_of(form), np.uint8)),
            "left": In(np.zeros((4, 128), np.uint32)),
            "start": In(np.zeros((4, 128), np.uint32)),
            "out": np.zeros((4, 128), np.uint32),
        }
        ran = run(program_of(kernel, "sm_90a"), arguments, block=(128,), smem=smem_of(form))
        assert ran.kinds == kinds
        assert all("writes a register that the wgmma reads" in one.detail for one in ran.result.findings)


def test_a_block_without_a_whole_warpgroup() -> None:
    source, lines = _steps()
    found = [one for one in _ran(source, block=96).result.findings if one.kind is FindingKind.WARPGROUP]
    assert found[0].line == lines["fence"]
    assert "128 threads" in found[0].detail


SETMAXNREG = """
extern "C" __global__ void __launch_bounds__(384) k() {{
  if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  else asm volatile("setmaxnreg.inc.sync.aligned.u32 {count};");
}}
"""


def test_the_registers_of_all_warpgroups_must_fit() -> None:
    assert run(program_of(SETMAXNREG.format(count=232), "sm_90a"), {}, block=(384,)).kinds == set()
    found = run(program_of(SETMAXNREG.format(count=240), "sm_90a"), {}, block=(384,)).only(FindingKind.WARPGROUP)
    assert found.line == 4
    assert "66560" in found.detail


def test_sparse_forms_are_refused_by_name() -> None:
    text = ptx_of(kernel_of(SMALL), "sm_90a")
    sparse = text.replace("wgmma.mma_async.sync", "wgmma.mma_async.sp.sync")
    with pytest.raises(UnsupportedPtx, match="sparse"):
        load_program(sparse).prepare("k")


# -- a pipeline --

PIPELINE = Path(__file__).parents[2] / "examples" / "matmul_wgmma_tma.cu"
CHOICE = {"BN": 64, "STAGES": 3, "CLUSTER": 1}
SEEDED = {
    "a slot is multiplied before it is full": (
        "barrier_wait(full + slot * 8, parity);",
        "",
        FindingKind.ASYNC_NOT_WAITED,
        "wgmma(",
    ),
    "a slot is filled before it is empty": (
        "barrier_wait(empty + slot * 8, parity);",
        "",
        FindingKind.RACE_SHARED,
        "load_box(",
    ),
    "a slot is given back while it is read": ("wgmma_wait<1>();", "", FindingKind.RACE_SHARED, "load_box("),
    "sums are read before they are there": ("wgmma_wait<0>();", "", FindingKind.WGMMA_IN_FLIGHT, "pack("),
    "no fence of registers": ("        wgmma_fence();", "", FindingKind.WGMMA_NOT_FENCED, "wgmma("),
    "TMA is not shown what threads wrote": (
        'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");',
        "",
        FindingKind.NO_PROXY_FENCE,
        "store_box(",
    ),
    "too few bytes are announced": (
        "barrier_arrive_expecting(arrived, SLOT_BYTES);",
        "barrier_arrive_expecting(arrived, A_BYTES);",
        FindingKind.MBARRIER,
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDED)
def test_bugs_of_a_pipeline_are_found_at_their_line(name: str) -> None:
    old, new, kind, at = SEEDED[name]
    text = PIPELINE.read_text()
    assert text.count(old) == 1
    file = parse(text.replace(old, new), "matmul.cu")
    torch.manual_seed(0)
    a, b = torch.randn(128, 520).bfloat16(), torch.randn(520, 64).bfloat16()
    findings = prepare(file, (a, b), PROFILES["H200"], CHOICE).run(LaunchOptions()).findings
    lines = text.replace(old, new).splitlines()
    found = [one for one in findings if one.kind is kind]
    assert found, shown(findings)
    assert any(at in lines[place.line - 1] for one in found for place in one.places), shown(found)
