"""The envelope, calibrated: honest ways to compute pass with room to spare, shortcuts in precision do not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tilewright.records import Precision
from tilewright.verify.arithmetic import Roundings
from tilewright.verify.distributions import ValueTraits
from tilewright.verify.expectation import expectations
from tilewright.verify.recheck import Recheck, compare_all
from tilewright.verify.tolerance import Comparison, Expected, Tiles, compare

Tensors = dict[str, torch.Tensor]


def judged(
    reference: Callable[..., torch.Tensor],
    inputs: Tensors,
    found: torch.Tensor,
    precision: Precision = Precision.DTYPE,
) -> Comparison:
    (expected,) = expectations(lambda given: (reference(**given),), inputs, precision)
    return compare(found, expected)


def tf32(value: torch.Tensor) -> torch.Tensor:
    bits = value.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def running_sum(value: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(value.shape[:-1])
    for one in value.unbind(-1):
        total = total + one
    return total


def running_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k : k + 1]
    return total


def narrow_matmul(a: torch.Tensor, b: torch.Tensor, step: int) -> torch.Tensor:
    """Sums kept in the operands' own type between steps of K."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for k in range(0, a.shape[1], step):
        total = (total.float() + a[:, k : k + step].float() @ b[k : k + step].float()).to(a.dtype)
    return total


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(5)


@pytest.mark.parametrize("draw", [torch.randn, torch.rand])
@pytest.mark.parametrize("terms", [64, 2048])
def test_f32_matmul(draw: Callable[..., torch.Tensor], terms: int) -> None:
    a, b = draw(48, terms), draw(terms, 40)
    inputs = {"a": a, "b": b}
    for honest in (a @ b, running_matmul(a, b), sum(a[:, k::4] @ b[k::4] for k in range(4))):
        assert judged(matmul, inputs, honest).ratio < 0.7
    large, small = tf32(a), tf32(a - tf32(a))
    three = large @ tf32(b) + small @ tf32(b) + large @ tf32(b - tf32(b))
    assert judged(matmul, inputs, three).right
    assert judged(matmul, inputs, tf32(a) @ tf32(b)).ratio > 2
    assert judged(matmul, inputs, a.bfloat16().float() @ b.bfloat16().float()).ratio > 15
    assert judged(matmul, inputs, a[:, : -terms // 64] @ b[: -terms // 64]).ratio > 1000


def test_tf32_margin_on_zero_mean_inputs() -> None:
    a, b = torch.randn(48, 512), torch.randn(512, 40)
    assert judged(matmul, {"a": a, "b": b}, tf32(a) @ tf32(b)).ratio > 50
    assert judged(matmul, {"a": a, "b": b}, tf32(a) @ tf32(b), Precision.TF32).right
    halves = a.bfloat16().float() @ b.bfloat16().float()
    assert not judged(matmul, {"a": a, "b": b}, halves, Precision.TF32).right
    assert judged(matmul, {"a": a, "b": b}, halves, Precision.HALF).right
    assert not judged(matmul, {"a": a, "b": b}, 1.1 * halves, Precision.HALF).right


def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, padding=1)


@pytest.mark.parametrize("draw", [torch.randn, torch.rand])
def test_f32_convolutions_may_be_as_pytorchs_own_by_default(draw: Callable[..., torch.Tensor]) -> None:
    x, w = draw(2, 24, 12, 11), draw(16, 24, 3, 3)
    inputs = {"x": x, "w": w}
    rounded = convolved(tf32(x), tf32(w))
    for precision in (Precision.DTYPE, Precision.DEFAULT_F32, Precision.STRICT, Precision.TF32):
        assert judged(convolved, inputs, convolved(x, w), precision).ratio < 0.7
    assert judged(convolved, inputs, rounded).ratio < 0.7
    for exact in (Precision.DEFAULT_F32, Precision.STRICT):
        assert judged(convolved, inputs, rounded, exact).ratio > 2
    halves = convolved(x.bfloat16().float(), w.bfloat16().float())
    assert not judged(convolved, inputs, halves).right
    assert judged(convolved, inputs, halves, Precision.HALF).right
    assert not judged(convolved, inputs, convolved(tf32(x), tf32(w)) * 1.02).right


def test_what_comes_after_a_convolution_inherits_its_leeway_and_a_product_beside_it_has_none() -> None:
    def call(given: Tensors) -> tuple[torch.Tensor, ...]:
        after = convolved(given["x"], given["w"]).flatten(1)
        return after @ given["m"], given["x"].flatten(1) @ given["m"]

    x, w, m = torch.randn(6, 8, 5, 5), torch.randn(8, 8, 3, 3), torch.randn(200, 30)
    after, beside = expectations(call, {"x": x, "w": w, "m": m}, Precision.DTYPE)
    assert compare(convolved(tf32(x), tf32(w)).flatten(1) @ m, after).right
    assert compare(x.flatten(1) @ m, beside).right
    assert compare(tf32(x.flatten(1)) @ tf32(m), beside).ratio > 10


def test_16_bit_convolutions_are_no_coarser_than_their_inputs() -> None:
    x, w = torch.randn(2, 24, 12, 11).half(), torch.randn(16, 24, 3, 3).half()
    inputs = {"x": x, "w": w}
    wide = convolved(x.float(), w.float())
    assert judged(convolved, inputs, wide.half()).right
    eight = torch.float8_e4m3fn
    narrow = convolved(x.to(eight).float(), w.to(eight).float()).half()
    assert not judged(convolved, inputs, narrow).right
    assert Roundings.of(Precision.DTYPE, torch.float32).convolved == 0.0


def test_bf16_matmul() -> None:
    a, b = torch.randn(96, 1024).bfloat16(), torch.randn(1024, 80).bfloat16()
    inputs = {"a": a, "b": b}
    assert judged(matmul, inputs, running_matmul(a.float(), b.float()).bfloat16()).ratio < 0.7
    assert not judged(matmul, inputs, narrow_matmul(a, b, 1)).right
    assert not judged(matmul, inputs, narrow_matmul(a, b, 64)).right
    eight = torch.float8_e4m3fn
    assert not judged(matmul, inputs, (a.to(eight).float() @ b.to(eight).float()).bfloat16()).right


def layernorm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],))


def layernorm_written_out(x: torch.Tensor) -> torch.Tensor:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt((x - mean).square().mean(-1, keepdim=True) + 1e-5)


@pytest.mark.parametrize("reference", [layernorm, layernorm_written_out])
@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4])
def test_layernorm(reference: Callable[..., torch.Tensor], offset: float) -> None:
    x = torch.randn(32, 1024) + offset
    mean = (running_sum(x) / 1024)[:, None]
    variance = (running_sum((x - mean).square()) / 1024)[:, None]
    assert judged(reference, {"x": x}, (x - mean) * torch.rsqrt(variance + 1e-5)).ratio < 0.9
    one_pass = (running_sum(x * x) / 1024)[:, None] - mean * mean
    found = judged(reference, {"x": x}, (x - mean) * torch.rsqrt(one_pass + 1e-5))
    assert found.right == (offset == 0.0)
    assert judged(reference, {"x": x}, torch.zeros_like(x)).ratio > 20
    assert found.leeway < 0.1


def groupnorm(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, x.shape[1])


@pytest.mark.parametrize("reference", [layernorm, groupnorm])
def test_one_element_alone_is_normalised(reference: Callable[..., torch.Tensor]) -> None:
    """The answer is 0 whatever the input; scaled first and centred then, it is off by a rounding of the scaled one."""
    x = torch.randn(64, 1) if reference is layernorm else torch.randn(8, 16)
    scale = 1e-5**-0.5
    honest = torch.linspace(-1, 1, x.numel()).view_as(x) * 2.0**-24 * x * scale
    assert bool((honest != 0).any())
    assert judged(reference, {"x": x}, honest).right
    assert judged(reference, {"x": x}, honest + 1e-2).ratio > 5
    assert not judged(reference, {"x": x}, torch.full_like(x, torch.nan)).right


def groupnorm_of_pairs(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, x.shape[1] // 2, weight)


def layernorm_of_pairs(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x.view(x.shape[0], -1, 2), (2,), weight[:2]).flatten(1)


def batchnorm_of_pairs(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    channels = x.view(2, -1)
    return F.batch_norm(channels, None, None, weight[:1].expand(channels.shape[1]), training=True).view_as(x)


@pytest.mark.parametrize("reference", [groupnorm_of_pairs, layernorm_of_pairs, batchnorm_of_pairs])
def test_two_elements_are_normalised(reference: Callable[..., torch.Tensor]) -> None:
    """Near 1 and -1 whatever the input: but all that an honest kernel's mean is off by shows, on one side."""
    x, weight = 30.0 + torch.randn(64, 32), torch.randn(32)
    pairs = x.view(2, -1).T if reference is batchnorm_of_pairs else x.view(-1, 2)
    centred = pairs - ((pairs[:, :1] + pairs[:, 1:]) / 2) * (1 + 2.0**-24 * torch.randn(pairs.shape[0], 1).sign())
    exact = centred * torch.rsqrt(centred.square().mean(1, keepdim=True) + 1e-5)
    made = (exact.T if reference is batchnorm_of_pairs else exact).reshape(x.shape)
    scale = {"layernorm_of_pairs": weight[:2].repeat(16), "batchnorm_of_pairs": weight[0]}
    honest = made * scale.get(reference.__name__, weight)
    assert judged(reference, {"x": x, "weight": weight}, honest).right
    assert not judged(reference, {"x": x, "weight": weight}, honest * (1 + 3e-3)).right
    assert not judged(reference, {"x": x.bfloat16().float(), "weight": weight}, honest).right


@pytest.mark.parametrize("size", [33, 1000, 32768])
@pytest.mark.parametrize("reach", [1.0, 80.0])
def test_softmax(size: int, reach: float) -> None:
    x = torch.randn(8, size).clamp(-4, 4) / 4 * reach if reach > 1 else torch.randn(8, size)
    inputs = {"x": x}

    def softmax(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    largest = x.amax(-1, keepdim=True)
    powers = torch.exp2((x - largest) * 1.4426950408889634)
    assert judged(softmax, inputs, powers / running_sum(powers)[:, None]).ratio < 0.7
    assert judged(softmax, inputs, torch.zeros_like(x)).ratio > 100
    assert judged(softmax, inputs, torch.full_like(x, 1 / size)).ratio > 100
    assert judged(softmax, inputs, torch.softmax(x.bfloat16().float(), -1)).ratio > 10
    assert judged(softmax, inputs, torch.softmax(tf32(x), -1)).ratio > 10


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x, -1)


def log_softmax_written_out(x: torch.Tensor) -> torch.Tensor:
    return x - torch.logsumexp(x, -1, keepdim=True)


@pytest.mark.parametrize("reference", [log_softmax, log_softmax_written_out])
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_log_softmax(reference: Callable[..., torch.Tensor], size: int) -> None:
    """With one class the answer is 0 whatever the input: a sum added to the maximum is off by a rounding of that."""
    x = 3.0 * torch.randn(64, size)
    scaled = x * 1.4426950408889634
    largest = scaled.amax(-1, keepdim=True)
    lost = torch.linspace(-1, 1, 64)[:, None] * 2.0**-24 * largest  # as where a product is not rounded before a sum
    sums = running_sum(torch.exp2(scaled - largest + lost))[:, None]
    honest = (scaled + lost - (largest + torch.log2(sums))) * 0.6931471805599453
    if size == 1:
        assert bool((honest != 0).any())
    assert judged(reference, {"x": x}, honest).right
    assert judged(reference, {"x": x}, honest + 1e-4).ratio > 5
    if size > 1:
        assert judged(reference, {"x": x}, reference(tf32(x))).ratio > 10
        assert judged(reference, {"x": x}, scaled - scaled.logsumexp(-1, keepdim=True)).ratio > 100


def test_sums_and_means() -> None:
    x = torch.randn(32, 4096)

    def mean(x: torch.Tensor) -> torch.Tensor:
        return x.mean(-1)

    assert judged(mean, {"x": x}, running_sum(x) / 4096).ratio < 0.9
    assert judged(mean, {"x": x}, x[:, ::16].mean(-1)).ratio > 1000
    assert judged(mean, {"x": x}, x[:, :-1].sum(-1) / 4096).ratio > 100
    assert judged(mean, {"x": x}, x.bfloat16().float().mean(-1)).ratio > 10

    def loss(x: torch.Tensor) -> torch.Tensor:
        return x.square().mean()

    assert judged(loss, {"x": x}, x[::2].square().mean()).ratio > 100


def test_cancellation_is_allowed_for_wherever_it_arises() -> None:
    x = torch.randn(4000) * 1e3
    y = x * (1 + 1e-4 * torch.randn(4000))

    def difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * 3.1 - y * 3.1).tanh()

    fused = torch.addcmul(-(y * 3.1), x, torch.tensor(3.1)).tanh()
    assert judged(difference, {"x": x, "y": y}, fused).right
    assert not judged(difference, {"x": x, "y": y}, ((x * 1.001 - y) * 3.1).tanh()).right


def test_a_reference_that_insists_on_f32_has_an_f64_truth_all_the_same() -> None:
    x = torch.randn(16, 4096)

    def reference(x: torch.Tensor) -> torch.Tensor:
        scale = torch.full((4096,), 0.1, dtype=torch.float32)
        return (x.float() * scale).to(torch.float32).sum(-1, dtype=torch.float32)

    (expected,) = expectations(lambda given: (reference(**given),), {"x": x}, Precision.DTYPE)
    assert expected.truth.dtype == torch.float64
    assert compare(running_sum(x * 0.1), expected).ratio < 0.9

    def insists(x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.float32
        return x.sum(-1)

    assert judged(insists, {"x": x}, running_sum(x)).right
    assert not judged(insists, {"x": x}, x[:, 1:].sum(-1)).right


def test_one_wrong_element_among_many() -> None:
    x = torch.randn(512, 512)
    found = F.gelu(x)
    assert judged(F.gelu, {"input": x}, found).right
    found[17, 300] += 2e-5
    result = judged(F.gelu, {"input": x}, found)
    assert bool(result.wrong[17, 300])
    assert not judged(F.gelu, {"input": x}, F.gelu(x, approximate="tanh")).right


def exactly(own: torch.Tensor) -> Expected:
    return Expected(own, own.double(), (own.double(),))


def test_not_finite_stands_where_the_reference_has_it() -> None:
    own = torch.tensor([1.0, math.nan, math.inf, -math.inf])
    assert compare(own.clone(), exactly(own)).right
    for position, value in ((0, math.nan), (1, 0.0), (2, -math.inf), (3, 1.0)):
        found = own.clone()
        found[position] = value
        result = compare(found, exactly(own))
        assert result.wrong.nonzero().flatten().tolist() == [position]
        assert result.ratio == math.inf
    truth = torch.tensor([1.0, 70000.0], dtype=torch.float64)
    half = truth.half()
    assert compare(half.clone(), Expected(half, truth, ())).right
    assert compare(torch.tensor([1.0, 65504.0]).half(), Expected(half, truth, ())).wrong.tolist() == [False, True]


def test_a_number_near_the_truth_is_right_where_the_reference_overflowed_on_its_way() -> None:
    truth = torch.tensor([1.0, 6.7, 7.0, -3.0], dtype=torch.float64)
    own = torch.tensor([1.0, math.inf, math.nan, -math.inf]).half()
    for found, wrong in (
        ([1.0, math.inf, math.nan, -math.inf], []),
        ([1.0, 6.7, 7.0, -3.0], []),
        ([1.0, 6.8, 7.0, -3.0], [1]),
        ([1.0, -math.inf, math.inf, math.nan], [1, 2, 3]),
    ):
        result = compare(torch.tensor(found).half(), Expected(own, truth, (truth,)))
        assert result.wrong.nonzero().flatten().tolist() == wrong


def in_two_halves(x: torch.Tensor) -> torch.Tensor:
    high = x.bfloat16()
    return (x - high.float()).bfloat16()


def saturated(x: torch.Tensor) -> torch.Tensor:
    half = x.half()
    return torch.where(half.isinf(), 65504.0, half.float())


def test_what_is_cast_to_16_bits_is_rounded_in_the_truth_too() -> None:
    x = torch.randn(64, 200) * 3
    assert judged(in_two_halves, {"x": x}, in_two_halves(x)).right
    assert bool(judged(in_two_halves, {"x": x}, torch.zeros_like(x).bfloat16()).wrong.any())
    x *= 3e4
    assert judged(saturated, {"x": x}, saturated(x)).right
    assert bool(judged(saturated, {"x": x}, x).wrong.any())
    assert bool(judged(lambda x: x.bfloat16().float() * 2, {"x": x}, x * 2).wrong.any())


@pytest.mark.parametrize("function", [torch.exp, torch.tanh, lambda x: torch.softmax(x, -1)])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_a_number_in_the_middle_may_be_cast_to_either_side(
    function: Callable[[torch.Tensor], torch.Tensor], half: torch.dtype
) -> None:
    x = torch.randn(512, 1024)
    exact = function(x.double())
    one_off = (exact * (1 + 2.0**-23 * torch.rand(x.shape).sub(0.5).sign())).float()  # as quick functions are
    assert not torch.equal(one_off.to(half), exact.to(half))
    found = one_off.to(half).float()
    assert judged(lambda x: function(x).to(half).float(), {"x": x}, found).ratio < 0.7
    found[3, 17] = float(torch.nextafter(found[3, 17].to(half), torch.tensor(9.0).to(half)))
    result = judged(lambda x: function(x).to(half).float(), {"x": x}, found)
    assert result.wrong.nonzero().tolist() == [[3, 17]]


def test_all_lean_to_one_side_though_the_reference_overflows_somewhere() -> None:
    truth = torch.randn(128, 256, dtype=torch.float64)
    own = truth.half()
    for other in (math.inf, math.nan):
        own[0, 0] = other
        expected = Expected(own, truth, (truth,))
        assert compare(truth.half(), expected, traits=ValueTraits(even=True)).right
        assert not compare((truth * (1 + 0.5 * 2.0**-11)).half(), expected, traits=ValueTraits(even=True)).right


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bits_with_and_without_nan(dtype: torch.dtype) -> None:
    truth = torch.linspace(-3.0, 3.0, 300).to(dtype).double()
    assert compare(truth.to(dtype), exactly(truth)).right
    assert not compare((2 * truth).to(dtype), exactly(truth)).right
    truth[7] = math.nan
    assert compare(truth.to(dtype), exactly(truth)).right
    assert not compare(truth.nan_to_num(1.0).to(dtype), exactly(truth)).right


def test_integers_are_exact_and_ties_may_fall_either_way() -> None:
    own, truth = torch.tensor([3, 1, 2]), torch.tensor([3, 1, 4])
    expected = Expected(own, truth, (torch.tensor([3, 0, 2]),))
    for right in ([3, 1, 2], [3, 1, 4], [3, 0, 4]):
        assert compare(torch.tensor(right), expected).right
    assert compare(torch.tensor([3, 2, 2]), expected).wrong.tolist() == [False, True, False]
    flags = torch.tensor([True, False])
    assert compare(flags, exactly(flags)).right
    assert not compare(~flags, exactly(flags)).right


def test_a_given_tolerance_replaces_the_envelope() -> None:
    own = torch.linspace(1, 2, 100)
    assert compare(own * 1.001, exactly(own), 0.002).right
    assert not compare(own * 1.001, exactly(own), 0.0005).right


def test_nothing_is_right() -> None:
    assert compare(torch.zeros(0, 3), exactly(torch.zeros(0, 3))).right
    scalar = torch.tensor(2.5)
    assert compare(scalar.clone(), exactly(scalar)).right
    assert not compare(scalar + 1, exactly(scalar)).right


@pytest.mark.parametrize("shape", [(), (5,), (200,), (3, 7), (4, 64), (2, 1000), (2, 3, 513), (0, 4)])
def test_tiles_cover_every_element_once(shape: tuple[int, ...]) -> None:
    tiles = Tiles(shape, torch.device("cpu"))
    elements = math.prod(shape)
    assert int(tiles.counts.sum()) == elements
    values = torch.rand(shape, dtype=torch.float64)
    total = float((tiles.mean_square(tiles.cut(values)).square() * tiles.counts).sum())
    assert total == pytest.approx(float(values.square().sum()))
    numbers = torch.arange(tiles.counts.numel(), dtype=torch.float64)
    spread = tiles.spread(numbers)
    assert spread.shape == values.shape
    assert torch.bincount(spread.flatten().long(), minlength=len(numbers)).tolist() == tiles.counts.tolist()
    assert torch.equal(tiles.whole(tiles.cut(values)), values)


def test_a_loss_that_selects_one_class_adds_nothing_up() -> None:
    """Its error is that of the logarithm, not of a sum over all classes."""
    torch.manual_seed(1)
    logits = torch.randn(4, 20_000) * 0.1
    logits[:, 7] = 18.5
    target = torch.tensor([0, 1, 2, 3])
    call = lambda given: (torch.nn.functional.cross_entropy(given["x"], target, reduction="none"),)  # noqa: E731
    expected = expectations(call, {"x": logits}, Precision.DTYPE)[0]
    movement = torch.stack([(one - expected.truth).abs() for one in expected.moved]).max()
    assert 0 < float(movement) < 2e-5
    skipped = (18.5 - logits.double().gather(1, target[:, None]))[:, 0].float()  # as if no other class counted
    assert not compare(skipped, expected).right
    assert compare(expected.own, expected).right


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_errors_below_a_rounding_that_lean_one_way(dtype: torch.dtype) -> None:
    """A factor that is half a rounding off shows in no element and no tile; roundings themselves fall to both sides."""
    torch.manual_seed(3)
    x, step = torch.randn(64, 200).to(dtype), torch.finfo(dtype).eps / 2
    expected = expectations(lambda given: (F.silu(given["x"]) * 0.7,), {"x": x}, Precision.DTYPE)[0]
    truth = expected.truth
    assert compare(truth.to(dtype), expected, traits=ValueTraits(even=True)).right
    twice = ((F.silu(x.double()).to(dtype)).double() * 0.7).to(dtype)
    assert compare(twice, expected, traits=ValueTraits(even=True)).right, "rounded twice"
    for off in (truth * (1 + step), truth * (1 - step), truth + step * 0.2):
        leaning = compare(off.to(dtype), expected, traits=ValueTraits(even=True))
        assert leaning.ratio > 1
        assert not leaning.right
    constant = torch.full((64, 200), 1.0 / 3.0)
    same = expectations(lambda given: (given["x"] * 1.1,), {"x": constant.to(dtype)}, Precision.DTYPE)[0]
    assert compare(same.own, same, traits=ValueTraits(even=True)).right


# -- few wrong elements of many are looked at again --


def _expected_with(steps: list[torch.Tensor], truth: torch.Tensor) -> Expected:
    return Expected(truth.float(), truth, tuple(truth + step for step in steps))


def test_few_wrong_elements_are_looked_at_again() -> None:
    generator = torch.Generator().manual_seed(3)
    truth = torch.ones(4096, 64, dtype=torch.float64)
    sensitive = torch.full((4096, 1), 1e-7, dtype=torch.float64)
    sensitive[7] = 1e-3  # one row that honest kernels get very differently
    moves = [torch.randn(4096, 1, generator=generator, dtype=torch.float64) * sensitive for _ in range(12)]
    unlucky = [step.clone() for step in moves[:3]]
    for step in unlucky:
        step[7] = 1e-9  # and that hardly moved in the first look
    found = truth.clone()
    found[7] += 1.5e-3
    asked: list[int] = []

    class Again(Recheck):
        def second(self, wider: float = 4.0) -> list[Expected]:
            asked.append(1)
            return [_expected_with(moves, truth)]

    again = Again(lambda given: (truth.float(),), {}, Precision.DTYPE, 1)
    first = [_expected_with(unlucky, truth)]
    assert not compare(found.float(), first[0]).right
    _, (seen,) = compare_all([found.float()], first, ValueTraits(), again)
    assert (seen.right, asked) == (True, [1])

    # What is wrong stays wrong, and what is wrong in many places is not looked at twice.
    found[7] += 1.0
    _, (seen,) = compare_all([found.float()], first, ValueTraits(), again)
    assert (seen.right, asked) == (False, [1, 1])
    _, (seen,) = compare_all([(found + 1.0).float()], first, ValueTraits(), again)
    assert (seen.right, asked) == (False, [1, 1])
    _, (seen,) = compare_all([truth.float()], first, ValueTraits(), again)
    assert (seen.right, asked) == (True, [1, 1])


def test_results_of_one_rounding_that_hardly_moved_are_looked_at_again() -> None:
    """Means of everything that two operands make share the roundings of one of them: all are off by the same."""
    generator = torch.Generator().manual_seed(3)
    x, weight = torch.rand(16, 1, 96, generator=generator), torch.randn(64, 1, 3, generator=generator)
    reference = (
        lambda given: (torch.conv1d(given["x"], given["w"]).mean((1, 2)),),
        {"x": x, "w": weight},
        Precision.DTYPE,
    )
    (many,) = expectations(*reference, moves=40, first_seed=1000)
    usual = float(torch.stack([one.double() - many.truth for one in many.moved]).square().mean().sqrt())
    found = (many.truth + 2 * usual).float()
    firsts = {seed: expectations(*reference, moves=2, first_seed=seed) for seed in range(1, 200, 2)}
    unlucky = [seed for seed, first in firsts.items() if not _is_right(found, first)]
    assert unlucky, "two moves were enough every time"
    for seed in unlucky:
        looks = Recheck(*reference, seed)
        assert _is_right(found, compare_all([found], firsts[seed], ValueTraits(), looks)[0])
        # No more is allowed than more moves bear out.
        worse = (many.truth + 12 * usual).float()
        assert not _is_right(worse, compare_all([worse], firsts[seed], ValueTraits(), looks)[0])


def test_one_element_of_very_many_is_looked_at_a_third_time() -> None:
    """A number just below a threshold: a rounding in twenty takes it across, and a dozen may all fail to."""
    x = torch.full((1024, 256), 2.0)
    x[5, 7] = 1.0 - 6 * 2.0**-24
    reference = (lambda given: (torch.sigmoid(1e12 * torch.relu(given["x"] - 1.0)),), {"x": x}, Precision.DTYPE)
    (truth,) = reference[0]({"x": x.double()})
    found = truth.float()
    found[5, 7] = 1.0
    first = expectations(*reference, first_seed=1)
    seeds = [seed for seed in range(100, 1000, 100) if not _is_right(found, Recheck(*reference, seed).second())]
    assert seeds, "the dozen moves of a second look crossed the threshold every time"
    assert _is_right(found, compare_all([found], first, ValueTraits(), Recheck(*reference, seeds[0]))[0])
    # Where no rounding crosses the threshold, the same answer is as wrong as before.
    x[5, 7] = 1.0 - 60 * 2.0**-24
    assert not _is_right(found, compare_all([found], first, ValueTraits(), Recheck(*reference, seeds[0]))[0])


def _is_right(found: torch.Tensor, expected: list[Expected]) -> bool:
    return compare(found, expected[0]).right


def test_a_rounding_that_a_row_has_in_common_moves_few_rows_and_not_many() -> None:
    """A weight of attention rounded to 16 bits moves all of its row; where many rows move so, it is no rounding."""
    generator = torch.Generator().manual_seed(5)
    truth = torch.rand(64, 128, generator=generator, dtype=torch.float64) + 0.5
    moved = tuple(truth * (1 + 1e-7 * step) for step in (-1.0, 1.0, 0.5))
    step = 3.0 / math.sqrt(3.0) * 2.0**-11

    def narrow(rows: int, contracted: bool = True) -> bool:
        found = truth.clone()
        found[:rows] *= 1.0 + step
        return compare(found.half(), Expected(truth.half(), truth, moved, contracted=contracted)).right

    assert narrow(2)
    assert not narrow(3)
    assert not narrow(2, contracted=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_is_right_with_nothing_allowed_for_moves_is_right_with_them(dtype: torch.dtype) -> None:
    """A large call's parts are first compared so: errors of every size, with and without what is no number."""
    torch.manual_seed(2)
    rights = [0, 0]
    for number in range(60):
        truth = torch.randn(5, 300).double()
        own = (truth * (1 + 1e-7 * torch.randn(5, 300))).to(dtype)
        moved = tuple(truth * (1 + 10.0 ** -(4 + number % 5) * torch.randn(5, 300)) for _ in range(2))
        found = (truth * (1 + 10.0 ** (-8 + number / 12) * torch.randn(5, 300))).to(dtype)
        if number % 3 == 0:
            for one in (truth, own, found, moved[0]):
                one[number % 5, 7] = math.inf if number % 2 else math.nan
        traits = ValueTraits(mixed=number % 4 == 1, one_sided=number % 4 == 2)
        without = compare(found, Expected(own, truth, ()), traits=traits)
        withal = compare(found, Expected(own, truth, moved), traits=traits)
        assert bool((without.allowed <= withal.allowed * (1 + 1e-12)).all())
        assert withal.right or not without.right
        rights[0] += without.right
        rights[1] += withal.right
    assert 0 < rights[0] < rights[1] < 60


def test_want_of_memory_is_no_reason_for_a_narrower_truth() -> None:
    def greedy(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            raise torch.OutOfMemoryError("no more")
        return x * 2

    with pytest.raises(torch.OutOfMemoryError):
        judged(greedy, {"x": torch.randn(8)}, torch.zeros(8))
