"""Products for Hopper: their files are read and chosen from here, and run emulated at small odd sizes.

`test_hopper_on_gpu` has them at their own sizes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product as every
from pathlib import Path

import pytest
import torch
from tests.playbook.hopper_products import Product

import tilewright
from tilewright.kernel_file import DoesNotApply, parse
from tilewright.kernel_file.evaluate import evaluate
from tilewright.playbook.gemms.epilogue_text import epilogue_text
from tilewright.playbook.gemms.hopper import can_fuse, can_write, hopper_product
from tilewright.playbook.gemms.hopper_form import Form
from tilewright.playbook.gemms.hopper_store import epilogue_lines
from tilewright.playbook.gemms.program import Kept, Triangle
from tilewright.playbook.gemms.schedules import gemm_schedules
from tilewright.records import BuildFailure, DType
from tilewright.records.gpu import PROFILES, GpuProfile
from tilewright.toolchain import build_plan

H200 = PROFILES["H200"]
LAYOUTS = tuple(every((False, True), (False, True)))
FORMS = (
    *(
        Product((batch, 256, 512, 4096), dtype, *layout, batched=batch > 1, pieces=pieces)
        for batch, dtype, layout, pieces in every((1, 3), (DType.F32, DType.BF16), LAYOUTS, (False, True))
    ),
    Product((1, 256, 512, 4096), fused=True),
    Product((1, 256, 512, 65536), b_transposed=True, fused=True, pieces=True),
    Product((3, 256, 512, 4096), batched=True, fused=True, bias=True, activation="relu"),
    Product((1, 256, 512, 65536), fused=True, pieces=True, residual=True),
    Product((1, 4096, 512, 4096), fused=True, ready_b=True),
    Product((1, 4096, 512, 4096), b_transposed=True, fused=True, ready_b=True, bias=True, activation="gelu"),
    Product((1, 33, 5, 7), bias=True),
    Product((1, 256, 512, 64), DType.F16, bias=True, activation="gelu", residual=True),
    Product((1, 512, 512, 512), kept=Kept(Triangle.UPPER)),
    Product((1, 512, 512, 512), DType.BF16, kept=Kept(Triangle.LOWER, -1)),
    Product((1, 512, 512, 64), a_transposed=True, bias=True),
)


QUICK = (FORMS[0], FORMS[7], FORMS[12], *FORMS[-11:])


@pytest.mark.parametrize("form", QUICK, ids=str)
def test_a_file_is_read_and_applies(form: Product) -> None:
    _check_applies(form)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_file_is_read_and_applies(form: Product) -> None:
    _check_applies(form)


def _check_applies(form: Product) -> None:
    evaluation = evaluate(parse(form.text, "product.cu"), form.specs, H200)
    assert evaluation.build_request() is not None
    with pytest.raises(DoesNotApply, match=r"device\.cc"):
        evaluate(parse(form.text, "product.cu"), form.specs, PROFILES["A100"])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_file_builds_and_spills_little(form: Product) -> None:
    built = build_plan(parse(form.text, "product.cu"), form.specs, H200, isolated=False)
    assert not isinstance(built, BuildFailure), built
    assert built.build is not None
    for launch in built.plan.launches:
        assert built.build.kernel(launch.kernel).resources.spill_store_bytes <= 256, launch.kernel


@pytest.mark.parametrize("form", QUICK, ids=str)
def test_only_constants_of_the_code_have_names_in_capitals(form: Product) -> None:
    """In a file of several parts such names are given to the code of each."""
    plan = hopper_product(form.contraction, form.op_line, form.pieces, form.fused, form.ready_b).plan
    constants = [line for line, _ in plan.entries if line.startswith(("//! const", "//! tune"))]
    in_capitals = [one for one in plan.names if one.isupper()]
    assert all(any(f" {name} = " in line for line in constants) for name in in_capitals)
    assert {"a_map", "b_map"} <= set(plan.names)


# -- emulated --

_HALF, _BRAIN = DType.F16, DType.BF16
SMALL = (
    Product((2, 40, 72, 1100), a_transposed=True, batched=True),
    Product((1, 72, 40, 72), _HALF, True, True, residual=True),
    Product((1, 33, 5, 7), bias=True),
    Product((1, 130, 72, 72), _BRAIN),
    Product((2, 40, 72, 136), _HALF, True, False, batched=True),
    Product((1, 72, 136, 72), _BRAIN, False, True, bias=True, activation="gelu"),
    Product((1, 136, 136, 72), _BRAIN, kept=Kept(Triangle.LOWER, 3)),
    Product((1, 72, 72, 712), _BRAIN, pieces=True),
    Product((1, 130, 77, 51)),
    Product((1, 40, 72, 300), DType.F32, True, True, pieces=True),
    Product((1, 130, 72, 132), fused=True, bias=True),
    Product((1, 72, 136, 68), b_transposed=True, fused=True),
    Product((1, 130, 300, 164), b_transposed=True, fused=True),
    Product((2, 250, 264, 300), fused=True, batched=True),
    Product((1, 136, 136, 64), fused=True, kept=Kept(Triangle.UPPER)),
    Product((1, 130, 72, 516), fused=True, pieces=True),
)
ALLOWED = {DType.F32: 5e-7, DType.F16: 5e-4, DType.BF16: 4e-3}  # relative, in the mean square


def _check_emulated(form: Product, schedules: int, folder: Path, text: str = "", gpu: GpuProfile = H200) -> None:
    path = folder / "product.cu"
    path.write_text(text or form.text)
    tensors = form.draw()
    call = tilewright.load(str(path)).emulate(*tensors, gpu=gpu, schedules=schedules)
    assert call.findings == ()
    truth, found = form.truth(tensors), call.results
    assert isinstance(found, torch.Tensor)
    assert (found.double() - truth).norm() <= ALLOWED[form.dtype] * truth.norm()


def test_a_product_runs_emulated(tmp_path: Path) -> None:
    _check_emulated(SMALL[0], 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("form", SMALL, ids=str)
def test_products_run_emulated_in_any_order(form: Product, tmp_path: Path) -> None:
    _check_emulated(form, 4, tmp_path)


@pytest.mark.parametrize("width", [64, 128, 192])
def test_a_block_that_goes_on_waits_until_its_last_piece_is_stored(width: int, tmp_path: Path) -> None:
    """Tiles of an odd number of 64 columns end in the buffer in which the block's next tile begins."""
    form = Product((1, 130, 72, 72), _BRAIN)
    text = form.text.replace("BN = 192 | 256 | 128 | 64", f"BN = {width}")
    assert f"BN = {width}\n" in text
    text = re.sub(r"//! need    BN .*\n", "", text)
    _check_emulated(form, 2, tmp_path, text, replace(H200, sms=1))


TRIANGLES = (
    Product((1, 650, 700, 72), kept=Kept(Triangle.UPPER)),
    Product((2, 530, 516, 68), kept=Kept(Triangle.LOWER, 130), batched=True, bias=True, activation="gelu"),
    Product((1, 530, 301, 72), kept=Kept(Triangle.UPPER, -200)),
    Product((1, 260, 516, 68), kept=Kept(Triangle.LOWER, -140)),
    Product((1, 136, 264, 68), kept=Kept(Triangle.UPPER, 600), bias=True),
)


@pytest.mark.parametrize("form", TRIANGLES, ids=str)
def test_triangles_are_walked_diagonal_by_diagonal(form: Product, tmp_path: Path) -> None:
    """Two blocks or three have tiles of both halves, of one, and of nothing that is kept."""
    for sms in (2, 3):
        _check_emulated(form, 2, tmp_path, gpu=replace(H200, sms=sms))


@pytest.mark.parametrize("layout", [(False, False), (True, True)])
def test_zeros_at_the_ends_of_a_tile_are_not_multiplied(layout: tuple[bool, bool], tmp_path: Path) -> None:
    """Of a's tiles one ends early and one is all zeros; of b's one begins late, and has what is infinite before."""
    form = Product((2, 300, 200, 1100), DType.F32, *layout, batched=True, kept=Kept(Triangle.UPPER, -300))
    path = tmp_path / "product.cu"
    path.write_text(form.text)
    op = tilewright.load(str(path))
    full, cut = form.draw(), form.draw()
    a, b = (one.mT if turned else one for one, turned in zip(cut, layout, strict=True))
    a[0, :128, 301:], a[1, 128:256], b[0, :800, :128] = 0.0, 0.0, 0.0
    fewer, all_of_it = (op.emulate(*one, gpu=replace(H200, sms=4), schedules=1) for one in (cut, full))
    assert isinstance(fewer.results, torch.Tensor)
    assert fewer.findings == ()
    assert (fewer.results.double() - form.truth(cut)).norm() <= 5e-7 * form.truth(cut).norm()
    run = [next(one.warp_instructions for one in call.counts if one.kernel == "product") for call in (fewer, all_of_it)]
    assert run[0] < 0.8 * run[1]
    b[0, 5, 3], b[1, 7, 150] = torch.inf, torch.nan  # they meet zeros that are not multiplied
    found = op.emulate(*cut, gpu="H200", schedules=1).results
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found.isnan(), form.truth(cut).isnan())


def test_a_block_of_a_triangle_that_is_run_alone_does_about_its_part(tmp_path: Path) -> None:
    """Of what it is counted by: nobody has split most of the operands, and nobody else takes tiles."""
    form = Product((1, 1024, 1024, 1100), kept=Kept(Triangle.UPPER))
    path = tmp_path / "product.cu"
    path.write_text(form.text)
    op, tensors, gpu = tilewright.load(str(path)), form.draw(), replace(H200, sms=8)
    calls = op.emulate(*tensors, gpu=gpu, schedules=1), op.emulate(*tensors, gpu=gpu, schedules=1, blocks=1)
    counts = [next(one for one in call.counts if one.kernel == "product") for call in calls]
    together, alone = (one.warp_instructions / one.blocks for one in counts)
    assert 0.8 * together < alone < 1.4 * together


LATE = (
    (Product((1, 300, 136, 264), _BRAIN, bias=True, activation="gelu"), 64, 2),
    (Product((2, 136, 200, 520), _HALF, True, True, batched=True, residual=True), 128, 2),
    (Product((1, 300, 200, 776), _BRAIN, b_transposed=True, bias=True), 192, 5),
)


@pytest.mark.parametrize(("form", "width", "blocks"), LATE, ids=str)
def test_sums_are_finished_under_the_next_tiles_products(
    form: Product, width: int, blocks: int, tmp_path: Path
) -> None:
    """By blocks that take an even and an odd number of tiles; steps are just enough to finish a tile under them."""
    text = form.text.replace("BN = 192 | 256 | 128 | 64", f"BN = {width}")
    text = re.sub(r"//! need    BN .*\n", "", text)
    gpu = replace(H200, sms=blocks)
    assert ("LATE", 1) in evaluate(parse(text, "product.cu"), form.specs, gpu).constants
    _check_emulated(form, 2, tmp_path, text, gpu)


SHARED = (
    (Product((1, 150, 776, 1096), _BRAIN, b_transposed=True, bias=True, activation="gelu"), 5),
    (Product((2, 136, 264, 1032), _HALF, True, False, batched=True, residual=True), 3),
    (Product((1, 300, 264, 1096), _BRAIN), 4),
    (Product((1, 380, 1536, 1096), _BRAIN, bias=True), 17),
)


@pytest.mark.parametrize(("form", "blocks"), SHARED, ids=str)
def test_the_last_tiles_are_shared_along_k(form: Product, blocks: int, tmp_path: Path) -> None:
    """In pieces of 3 to 12 steps, two or three of a tile, after tiles that are a block's own; and in single steps."""
    text = form.text.replace("tune    BN = 192 | 256 | 128 | 64", "const   BN = 256")
    text = re.sub(r"//! need    BN .*\n", "", text).replace(">= device.sms * 24", ">= device.sms")
    gpu = replace(H200, sms=blocks)
    assert ("SHARED", 1) in evaluate(parse(text, "product.cu"), form.specs, gpu).constants
    _check_emulated(form, 2, tmp_path, text, gpu)


def test_tiles_are_shared_where_that_saves_much() -> None:
    """Of 2,048 tiles 68 are beyond whole rounds of 132; of 512 there are 116."""

    def constants(size: int) -> dict[str, object]:
        form = Product((1, size, size, size), _BRAIN)
        return dict(evaluate(parse(form.text, "product.cu"), form.specs, H200).constants)

    assert constants(8192).items() >= {"BN": 256, "LATE": 1, "SHARED": 1}.items()
    assert constants(4096).items() >= {"BN": 256, "LATE": 1, "SHARED": 0}.items()


@pytest.mark.parametrize(("k", "shared"), [(1600, 0), (8384, 0), (8448, 1)])
def test_tiles_of_fewer_steps_than_blocks_are_not_shared(k: int, shared: int) -> None:
    """One tile is beyond a round of 132: its first block would wait for others that have no step of it."""
    form = Product((1, 19 * 128, 7 * 256, k), _BRAIN)
    assert ("SHARED", shared) in evaluate(parse(form.text, "product.cu"), form.specs, H200).constants


SHORT = (
    Product((1, 300, 136, 40)),
    Product((2, 300, 132, 64), a_transposed=True, b_transposed=True, batched=True, bias=True),
    Product((1, 300, 388, 51), b_transposed=True, activation="gelu"),
    Product((2, 780, 132, 30), a_transposed=True, batched=True, residual=True),
    Product((1, 1000, 264, 20)),
)


@pytest.mark.parametrize("form", SHORT, ids=str)
@pytest.mark.parametrize("sms", [1, 132])
def test_blocks_take_strips_of_short_sums_one_by_one(form: Product, sms: int, tmp_path: Path) -> None:
    """Wide tiles and narrow ones, some of which end outside; one for a block, and many for each of a few; strips of
    two, and the last ones of one."""
    assert "need    k <= 64" in form.text
    for width, strip in ((256, 1), (128, 2), (256, 2)):
        text = form.text.replace("tune    BN = 256 | 128", f"const   BN = {width}")
        text = text.replace("tune    STRIP = 2 | 8 | 4 | 1", f"const   STRIP = {strip}")
        text = re.sub(r"//! need    (BN|STRIP) == 1.*\n", "", text)
        assert f"const   BN = {width}" in text
        assert f"const   STRIP = {strip}" in text
        _check_emulated(form, 2, tmp_path, text, replace(H200, sms=sms))


OTHERS_OF_A_SHORT_K = (
    Product((1, 300, 77, 51), b_transposed=True),
    Product((1, 300, 260, 32), kept=Kept(Triangle.UPPER)),
)


@pytest.mark.parametrize("form", OTHERS_OF_A_SHORT_K, ids=str)
def test_other_results_of_a_short_k_are_stored_as_those_of_a_long_one(form: Product, tmp_path: Path) -> None:
    """Rows that are no whole numbers of 16 bytes, and triangles."""
    assert "need    k <= 64" not in form.text
    _check_emulated(form, 2, tmp_path, gpu=replace(H200, sms=2))


def test_what_tma_does_not_take_is_refused() -> None:
    assert can_write(Product((1, 8, 8, 8), DType.BF16).contraction)
    assert not can_write(Product((1, 8, 8, 12), DType.BF16).contraction)
    assert not can_write(Product((1, 8, 12, 8), DType.BF16).contraction)
    assert can_write(Product((1, 5, 7, 3)).contraction)
    assert can_fuse(Product((1, 5, 8, 4)).contraction, False)
    assert not can_fuse(Product((1, 5, 7, 4)).contraction, False)
    assert can_fuse(Product((1, 5, 8, 4), b_transposed=True).contraction, False)
    assert not can_fuse(Product((1, 8, 8, 4), a_transposed=True).contraction, False)
    assert can_fuse(Product((1, 5, 8, 1 << 20)).contraction, True)


def test_hopper_comes_first_where_it_is_the_gpu() -> None:
    def first(form: Product, arch: str = "sm_90a") -> str:
        return gemm_schedules([form.contraction], arch)[0].id

    assert first(Product((1, 4096, 4096, 4096))) == "product-hopper-parts"
    assert first(Product((1, 256, 256, 65536))) == "product-hopper-fused-pieces"
    assert first(Product((1, 256, 256, 65536), a_transposed=True)) == "product-hopper-parts-pieces"
    assert first(Product((1, 128, 32768, 32768), b_transposed=True)) == "product-hopper-fused"
    assert first(Product((128, 512, 2048, 1024), batched=True)) == "product-hopper-fused"
    assert first(Product((1, 1048576, 768, 256))) == "product-hopper-fused-a"
    (_, second, *_) = gemm_schedules([Product((1, 4096, 4096, 4096)).contraction], "sm_90a")
    assert second.id == "product-tensor-cores"
    assert first(Product((1, 1048576, 768, 64))) == "product-hopper-parts"
    assert first(Product((1, 4096, 4096, 4096), DType.BF16)) == "product-hopper"
    assert first(Product((1, 4096, 4096, 4100), DType.BF16)) == "product-tensor-cores"
    assert first(Product((1, 4096, 4096, 4096)), "sm_80") == "product-tensor-cores"


GELU = """\
//! op      gelu(x) -> y
//! out     y: f32[x.shape]
//! launch  run<<<ceil_div(x.numel, 256), 256>>>(x, y, x.numel)

{helper}
__global__ void run(const float* x, float* y, int n) {{
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = gelu_of(x[i]);
}}
"""


def test_the_gelu_of_sums_is_good_for_bf16(tmp_path: Path) -> None:
    (function,) = epilogue_text(Product((1, 256, 512, 64), DType.BF16, activation="gelu").contraction).helpers[0]
    path = tmp_path / "gelu.cu"
    path.write_text(GELU.format(helper=function))
    x = torch.cat((torch.linspace(-12, 12, 2000), torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30, -1e30])))
    found, truth = tilewright.load(str(path))(x), torch.nn.functional.gelu(x.double())
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found.isnan(), truth.isnan())
    usual = (x > -4) & (x < 12)
    assert ((found - truth).abs()[usual] <= 2.0**-9 * truth.abs()[usual]).all()
    assert ((found - truth).abs()[x.isfinite() & (x < 12)] < 1e-4).all()
    assert torch.equal(found[x >= 12], x[x >= 12])


def test_the_gelu_of_every_rounded_sum_is_right(tmp_path: Path) -> None:
    """Of all numbers of bf16: within a rounding of the truth, and at the left end, where a rounding of the sum alone
    moves it as much, within a sixteenth."""
    (function,) = epilogue_text(Product((1, 256, 512, 64), DType.BF16, activation="gelu").contraction).helpers[0]
    path = tmp_path / "gelu.cu"
    path.write_text(GELU.format(helper=function))
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).float()
    found, truth = tilewright.load(str(path))(x), torch.nn.functional.gelu(x.double())
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found.isnan(), truth.isnan())
    rounded, error = found.bfloat16().double(), (found.bfloat16().double() - truth).abs()
    usual = truth.isfinite() & (x > -4)
    assert (error <= 2.0**-8 * truth.abs() + 1e-38)[usual].all()
    left = (x <= -4) & (x > -5)
    assert (error <= truth.abs() / 16)[left].all()
    assert (rounded[x <= -5].nan_to_num().abs() < 2e-6).all()


STORE = """\
//! op      store(x) -> c
//! out     c: f32[{m}, {n}]
//! const   BN = 128
//! launch  store_sums<<<1, 256>>>(c, {m}, {n}, 1, 1)

struct Tile {{ int m0, n0, z, piece; }};
__global__ void store_sums(float* __restrict__ c, int M, int N, int batch, int pieces) {{
  constexpr int C_BYTES = 64 * 128;
  __shared__ __align__(1024) char places[2 * C_BYTES];
  const uint32_t c_buffers = (uint32_t)__cvta_generic_to_shared(places);
  const Tile tile = {{0, 0, 0, 0}};
  const int consumer = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  float sum[BN / 2];
  for (int i = 0; i < BN / 2; ++i)
    sum[i] = (consumer * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8) * 1000 + i / 4 * 8 + lane % 4 * 2 + i % 2;
{epilogue}
}}
"""


@pytest.mark.parametrize(("m", "n"), [(77, 92), (3, 37)])
def test_sums_are_stored_where_they_belong(m: int, n: int, tmp_path: Path) -> None:
    """As wgmma leaves them in registers; what is beyond the result is not stored."""
    product = Product((1, m, n, 64), DType.BF16, pieces=True).contraction
    text = "\n".join(epilogue_lines(Form(product, False, True, n % 4 == 0))).replace("unrolled for", "for")
    path = tmp_path / "store.cu"
    path.write_text(STORE.format(m=m, n=n, epilogue=text))
    places = torch.arange(m)[:, None] * 1000.0 + torch.arange(n)
    assert torch.equal(tilewright.load(str(path))(torch.zeros(1)), places)


ONE_AFTER_THE_OTHER = (
    Product((3, 130, 260, 132), batched=True, fused=True, ready_b=True, bias=True),
    Product((1, 300, 264, 68), b_transposed=True, fused=True, ready_b=True, residual=True),
)


def _by_two_blocks(form: Product) -> str:
    text = form.text.replace("product<<<min(tiles, device.sms)", "product<<<2")
    assert "product<<<2," in text
    return text


@pytest.mark.slow
@pytest.mark.parametrize("form", ONE_AFTER_THE_OTHER, ids=str)
def test_blocks_that_split_a_take_tile_after_tile(form: Product, tmp_path: Path) -> None:
    """Whose slots and scales go on from one tile to the next."""
    _check_emulated(form, 3, tmp_path, _by_two_blocks(form))


WIDE_TILES = (
    (Product((1, 260, 72, 68), fused=True, ready_b=True), "a", 130),
    (Product((1, 260, 72, 1100), fused=True, ready_b=True), "b", 3),
    (Product((1, 260, 72, 68), fused=True), "a", 130),
    (Product((1, 260, 72, 68), fused=True), "b", 3),
    (Product((1, 140, 260, 68), fused=True), "a", 130),
    (Product((1, 140, 260, 68), fused=True), "b", 3),
    (Product((1, 140, 260, 68), fused=True), "b", 131),
    (Product((1, 140, 260, 68), b_transposed=True, fused=True), "b", 131),
    (Product((1, 40, 72, 1100), a_transposed=True), "a", 33),
    (Product((1, 40, 72, 1100)), "b", 3),
    (Product((1, 260, 72, 32)), "a", 130),
    (Product((1, 140, 260, 64), a_transposed=True, b_transposed=True), "b", 131),
    (Product((1, 140, 260, 30)), "b", 131),
)


@pytest.mark.parametrize(("form", "name", "row"), WIDE_TILES, ids=str)
def test_tiles_too_wide_for_parts_are_made_again(form: Product, name: str, row: int, tmp_path: Path) -> None:
    """One number is large, and meets zeros: the rest of its row, or column, is the result. Where the parts are made
    first, the blocks of a cluster have its numbers."""
    a, b = form.draw()
    rows = a.mT if form.a_transposed else a
    columns = b.mT if form.b_transposed else b
    large, other = (rows[row], columns[5]) if name == "a" else (columns[:, row], rows[:, 5])
    large[5] = 1e9
    other[:] = 0.0
    path = tmp_path / "product.cu"
    path.write_text(_by_two_blocks(form) if form.ready_b else form.text)
    call = tilewright.load(str(path)).emulate(a, b, gpu="H200", schedules=1)
    assert isinstance(call.results, torch.Tensor)
    found, truth = (one[row] if name == "a" else one[:, row] for one in (call.results.double(), form.truth([a, b])))
    assert call.findings == ()
    assert (found - truth).norm() <= 5e-7 * truth.norm()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_operands_may_be_too_wide(layout: tuple[bool, bool], tmp_path: Path) -> None:
    """The kernels that split them run side by side, and tell with the same flag; not only their first blocks do."""
    form = Product((1, 140, 72, 1100), DType.F32, *layout)
    drawn = form.draw()
    a, b = (one.mT if turned else one for one, turned in zip(drawn, layout, strict=True))
    a[139, 5], b[9, 70] = 1e9, 1e12
    a[:, 9], b[5] = 0.0, 0.0
    path = tmp_path / "product.cu"
    path.write_text(form.text)
    call = tilewright.load(str(path)).emulate(*drawn, gpu="H200", schedules=2)
    assert isinstance(call.results, torch.Tensor)
    assert call.findings == ()
    assert (call.results.double() - form.truth(drawn)).norm() <= 5e-7 * form.truth(drawn).norm()


@pytest.mark.parametrize(("m", "turned"), [(8, True), (5, True), (8, False)])
def test_zeros_beside_one_tiny_number_do_not_hide_it(m: int, turned: bool, tmp_path: Path) -> None:
    """Of a long column most threads have zeros only; whether one number in 1024 is tiny is asked of the others."""
    form = Product((1, m, 8, 2048), a_transposed=turned)
    a, b = form.draw()
    rows = a.mT if turned else a
    rows[:4] = 0.0
    rows[:4, 0], rows[:4, 77], b[0] = 1e9, 1.2345e-3, 0.0
    path = tmp_path / "product.cu"
    path.write_text(form.text)
    found = tilewright.load(str(path)).emulate(a, b, gpu="H200", schedules=1).results
    assert isinstance(found, torch.Tensor)
    assert (found.double() / form.truth([a, b]) - 1.0)[:4].abs().max() <= 1e-6


@pytest.mark.parametrize("ready_b", [False, True])
def test_one_tiny_number_that_alone_is_the_result_is_kept(ready_b: bool, tmp_path: Path) -> None:
    """In a row of 512: the others meet zeros."""
    form = Product((1, 130, 72, 512), fused=True, ready_b=ready_b)
    a, b = form.draw()
    a[:, 77] *= 2.0**-26
    b[:77] = b[78:] = 0.0
    path = tmp_path / "product.cu"
    path.write_text(form.text)
    found = tilewright.load(str(path)).emulate(a, b, gpu="H200", schedules=1).results
    assert isinstance(found, torch.Tensor)
    assert (found.double() / form.truth([a, b]) - 1.0).abs().max() <= 1e-6


def test_rows_that_grow_are_scaled_anew(tmp_path: Path) -> None:
    """By the product itself: nothing else runs here. The last rows leave the range, and would be made again."""
    form = Product((1, 140, 72, 164), fused=True, ready_b=True)
    a, b = form.draw()
    a[::2, 40:] *= 50.0
    a[::3, 100:] *= 300.0
    a[5, 70], a[7, 163], a[11, 4:] = 3e4, -9e4, 0.0
    a[13, :70], a[15, :33] = 0.0, 0.0
    a[13] *= 1e9
    a[15] *= 1e-9
    a[137:, 150] = 1e9
    kept = re.sub(r"//! launch  tiles_in_f32<<<.*\n(//!      .*\n)*", "", form.text)
    path = tmp_path / "product.cu"
    path.write_text(kept.replace("tiles_in_f32", "tiles_not_used"))
    call = tilewright.load(str(path)).emulate(a, b, gpu="H200", schedules=1)
    assert isinstance(call.results, torch.Tensor)
    found, truth = call.results.double(), form.truth([a, b])
    assert ((found - truth).norm(dim=1)[:137] <= 5e-7 * truth.norm(dim=1)[:137]).all()
    assert not found[137:].isfinite().any()


@pytest.mark.parametrize("ready_b", [True, False])
@pytest.mark.parametrize("large", [1e9, 1e12])
def test_what_is_beside_one_large_number_is_not_lost(large: float, ready_b: bool, tmp_path: Path) -> None:
    """The large number is among the last of k and meets a zero; three that are scaled with it are part of the result,
    and too few to be counted."""
    form = Product((1, 8, 8, 4100), fused=True, ready_b=ready_b)
    a, b = form.draw()
    a[:4, 4098], b[4098] = large, 0.0
    a[2:4, :64] = 0.0
    path = tmp_path / "product.cu"
    path.write_text(form.text)
    call = tilewright.load(str(path)).emulate(a, b, gpu="H200", schedules=1)
    assert isinstance(call.results, torch.Tensor)
    assert call.findings == ()
    truth = form.truth([a, b])
    assert ((call.results.double() - truth).norm(dim=1) <= 2e-6 * truth.norm(dim=1)).all()


@pytest.mark.parametrize(("ready_b", "of_a"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("m", [8, 136])  # a block alone, and two of a cluster
def test_numbers_far_below_the_largest_are_no_zeros(m: int, ready_b: bool, of_a: bool, tmp_path: Path) -> None:
    form = Product((1, m, 8, 64), fused=True, ready_b=ready_b)
    a, b = form.draw()
    wide, other = (a, b.mT) if of_a else (b.mT, a)
    wide *= 2.0**-110
    other *= 2.0**30
    wide[:, 5], other[:, 5] = 2.0**60, 0.0
    path = tmp_path / "product.cu"
    path.write_text(form.text)
    call = tilewright.load(str(path)).emulate(a, b, gpu="H200", schedules=1)
    assert isinstance(call.results, torch.Tensor)
    truth = form.truth([a, b])
    assert ((call.results.double() - truth).abs() <= 2e-6 * truth.abs().mean()).all()


@pytest.mark.parametrize("ready_b", [True, False])
def test_a_small_number_of_a_short_row_is_not_lost_where_it_is_the_result(ready_b: bool, tmp_path: Path) -> None:
    form = Product((1, 136, 8, 252), fused=True, ready_b=ready_b)
    a, b = form.draw()
    a[:, 100] *= 2.0**-30
    b[:100], b[101:] = 0.0, 0.0
    path = tmp_path / "product.cu"
    path.write_text(form.text)
    call = tilewright.load(str(path)).emulate(a, b, gpu="H200", schedules=1)
    assert isinstance(call.results, torch.Tensor)
    truth = form.truth([a, b])
    assert ((call.results.double() - truth).abs() <= 2e-6 * truth.abs()).all()


@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize("fused", [False, True])  # of a short k, or where it is multiplied
def test_infinities_and_nan_come_out_where_f32_has_them(fused: bool, b_transposed: bool, tmp_path: Path) -> None:
    """In either operand, in rows and columns of both blocks of a cluster, among the first of k and later."""
    form = Product((1, 140, 260, 100 if fused else 60), b_transposed=b_transposed, fused=fused)
    a, b = form.draw()
    columns = b.mT if b_transposed else b
    a[3, 2], a[131, -30] = torch.inf, torch.nan
    columns[1, 5], columns[-10, 200] = -torch.inf, torch.nan
    path = tmp_path / "product.cu"
    path.write_text(form.text)
    call = tilewright.load(str(path)).emulate(a, b, gpu="H200", schedules=1)
    assert isinstance(call.results, torch.Tensor)
    assert call.findings == ()
    found, truth = call.results.double(), form.truth([a, b])
    assert torch.equal(found.isnan(), truth.isnan())
    assert torch.equal(found.isinf(), truth.isinf())
    ordinary = truth.isfinite()
    assert (found - truth)[ordinary].norm() <= 5e-7 * truth[ordinary].norm()


# -- what runs before and after the product --

_LEFT = ("a_parts", "b_parts", "a_scales", "b_scales", "wide")


def _without_product(form: Product) -> str:
    """The file with all that the emulator runs: parts and scales are results, and tiles in f32."""
    plan, _, code = form.text.partition("\n\n#include")
    plan = re.sub(r"//! map .*\n", "", plan)
    plan = re.sub(r"//! launch  product<<<.*\n(//!      .*\n)*", "", plan)
    plan = re.sub(r"//! need    device.cc .*\n", "", plan)
    plan = plan.replace("-> c\n", f"-> c, {', '.join(_LEFT)}\n")
    for name in _LEFT:
        plan = plan.replace(f"//! scratch {name}:", f"//! out     {name}:")
    plan = plan.replace("tune    BN = 256 | 128", "const   BN = 128")
    splitting, _, rest = code.partition("constexpr int BM = 128")
    tiles = rest[rest.index("// ---- tiles with") :]
    used = " + ".join(name for name in ("STAGES", "THREADS", "BN", "STRIP", "PLACES") if f" {name} = " in plan)
    return f"{plan}\n\n#include{splitting}constexpr int USED = {used};\n{tiles}"


def _run(form: Product, a: torch.Tensor, b: torch.Tensor, folder: Path) -> tuple[torch.Tensor, ...]:
    path = folder / "split.cu"
    path.write_text(_without_product(form))
    found = tilewright.load(str(path))(a, b)
    assert isinstance(found, tuple)
    return found


@pytest.mark.slow
def test_parts_hold_numbers_as_f32_does(tmp_path: Path) -> None:
    form = Product((1, 37, 72, 51), a_transposed=True)
    a, b = form.draw()
    _, a_parts, b_parts, a_scales, b_scales, wide = _run(form, a, b, tmp_path)
    _check_parts(a_parts[..., :37], a_scales[..., :37], a)
    _check_parts(b_parts[..., :72], b_scales[..., :72], b)
    assert not wide.any()


def _check_parts(parts: torch.Tensor, scales: torch.Tensor, exact: torch.Tensor) -> None:
    """Of columns."""
    held = parts.double().sum(0) * scales.double()
    assert ((held - exact).abs() <= 2.0**-23 * exact.abs() + 2.0**-39 * exact.abs().amax(0)).all()
    largest = parts[0].abs().amax(0)
    assert ((largest >= 2.0**14) & (largest <= 2.0**15)).all()


Change = Callable[[torch.Tensor], torch.Tensor]
WIDE: dict[str, Change] = {
    "an outlier of 1e8": lambda row: row.index_fill(0, torch.tensor([3]), 1e8),
    "an outlier of 1e12": lambda row: row.index_fill(0, torch.tensor([3]), -1e12),
    "an outlier, one number, and zeros": lambda row: torch.eye(len(row))[3] * 1e8 + torch.eye(len(row))[5],
    "an infinity": lambda row: row.index_fill(0, torch.tensor([3]), torch.inf),
    "NaN": lambda row: row.index_fill(0, torch.tensor([3]), torch.nan),
    "very large numbers": lambda row: row * 1e30,
    "very small numbers": lambda row: row * 1e-30,
}
NOT_WIDE: dict[str, Change] = {
    "zeros": lambda row: row * 0,
    "one number": lambda row: torch.eye(len(row))[3] * 7,
    "an outlier of 1e4": lambda row: row.index_fill(0, torch.tensor([3]), 1e4),
    "1e10": lambda row: row * 1e10,
}


@pytest.mark.slow
@pytest.mark.parametrize(("transposed", "batched"), LAYOUTS)
def test_rows_too_wide_for_parts_are_made_in_f32(transposed: bool, batched: bool, tmp_path: Path) -> None:
    """Row 130 of a is of each kind in turn; b is 0 where the large number meets it."""
    form = Product(
        (2 if batched else 1, 140, 68, 33), a_transposed=transposed, b_transposed=transposed, batched=batched
    )
    usual = (0.5 + torch.rand(33)) * torch.randn(33).sign()  # none so small that it counts beside an outlier of 1e4
    for name, change in {**WIDE, **NOT_WIDE}.items():
        _check_wide(form, name, change(usual), name in WIDE, tmp_path)


@pytest.mark.parametrize("k", [33, 70])  # split by one kernel, and by two
def test_an_outlier_beside_zero_weights_is_made_in_f32(k: int, tmp_path: Path) -> None:
    form = Product((1, 140, 68, k))
    _check_wide(form, "an outlier", WIDE["an outlier of 1e12"](torch.randn(k)), True, tmp_path)


def _check_wide(form: Product, name: str, row: torch.Tensor, expected: bool, folder: Path) -> None:
    a, b = form.draw()
    rows = a.mT if form.a_transposed else a
    rows[..., 130, :] = row
    (b.mT if form.b_transposed else b)[..., 3, :] = 0.0
    c, _, b_parts, _, b_scales, wide = _run(form, a, b, folder)
    if not form.b_transposed and not form.batched:
        _check_parts(b_parts[..., : form.sizes[2]], b_scales[..., : form.sizes[2]], b)
    any_is = 0 if "k <= 64" in form.text else int(expected)  # where k is short, how many tiles are taken: none here
    assert wide.tolist() == [any_is, *[0, int(expected), 0] * form.sizes[0]], name
    if expected:
        truth = form.truth([a, b])[..., 128:, :]
        right = torch.isclose(c[..., 128:, :].double(), truth, rtol=1e-5, atol=1e-30, equal_nan=True)
        usual = (c[..., 128:, :] - truth).abs() <= 2e-6 * truth.abs().mean(-1, keepdim=True)
        assert (right | usual).all(), name
