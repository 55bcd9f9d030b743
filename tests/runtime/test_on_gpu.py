"""Kernel files called on CUDA tensors: every feature of a plan, against torch, through either launcher."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from tests.runtime import plans
from tests.runtime.conftest import Make

from tilewright.kernel_file import CallError, KernelFileError
from tilewright.runtime import (
    BuildDuringCapture,
    BuildFailed,
    GradientNotSupported,
    NoKernelApplies,
    NotOnCuda,
    OverlappingTensors,
    ReferenceUsed,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


# -- what a plan can ask for --


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1,), (1000,), (3, 5, 7)])
def test_templates_by_dtype(gpu_make: Make, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = randn(*shape, dtype=dtype)
    y = gpu_make(plans.TWICE)(x)
    assert (y.dtype, y.shape, y.device) == (dtype, x.shape, x.device)
    assert torch.equal(y, x + x)


def test_many_calls_alike_and_then_another(gpu_make: Make) -> None:
    """Past the number of calls after which a call is compared with the latest."""
    twice = gpu_make(plans.TWICE)
    one = torch.ones(1, device="cuda")
    for _ in range(20):
        assert twice(one) == 2
    for _ in range(3):  # contiguous, and no plain tensor all the same
        with pytest.raises(NoKernelApplies, match=r"negated view; pass x\.resolve_neg\(\)"):
            twice(torch._neg_view(one))
    with pytest.raises(NoKernelApplies, match="aligned"):
        twice(randn(2)[1:])
    for other in (randn(3, 5), randn(5, 3), randn(1, 1), randn(1, dtype=torch.float16)):
        assert torch.equal(twice(other), other + other)
    wanting = torch.ones(1, device="cuda", requires_grad=True)
    for _ in range(10):
        with torch.no_grad():
            assert twice(wanting) == 2
        with pytest.raises(GradientNotSupported):
            twice(wanting)
    with torch.inference_mode():
        for _ in range(20):
            assert twice(one) == 2


def test_late_scalars_change_at_every_call(gpu_make: Make) -> None:
    scale = gpu_make(plans.SCALE)
    x = randn(100, 7)
    for factor in (0.5, -3.0, 1e20, 2):
        torch.testing.assert_close(scale(x, factor), x * (2 * factor))
    torch.testing.assert_close(scale(x, shift=-4, factor=1.0), x * 2 - 4)
    assert len(scale._entries) <= 2  # numbers that decide nothing make no new entry (2 is an int, not a float)


def test_a_late_scalar_that_does_not_fit_is_located(gpu_make: Make) -> None:
    scale = gpu_make(plans.SCALE)
    x = randn(10)
    scale(x, 1.0)
    with pytest.raises(KernelFileError, match=r"argument 5 of scale: 2147483648 is outside"):
        scale(x, 1.0, 2**31)
    with pytest.raises(KernelFileError, match="beyond the range of a float"):
        scale(x, 1e300)
    torch.testing.assert_close(scale(x, 1.0, 2), x * 2 + 2)


def test_strided_result(gpu_make: Make) -> None:
    x = randn(30, 40)
    y = gpu_make(plans.TRANSPOSED)(x)
    assert y.stride() == (1, 30)
    assert torch.equal(y, x)


def test_strided_and_unaligned_inputs(gpu_make: Make) -> None:
    operation = gpu_make(plans.ANY_STRIDES)
    base = randn(41, 31)
    for x in (base, base.t(), base[1:, 1:], base[::2, ::3], base[:, :1].expand(41, 9)):
        assert torch.equal(operation(x), x + 1)


def test_scratch_and_two_launches(gpu_make: Make) -> None:
    x = randn(300, 777)
    torch.testing.assert_close(gpu_make(plans.TWO_LAUNCHES)(x), x.mean(1), rtol=1e-5, atol=1e-5)


def test_zeroed_scratch(gpu_make: Make) -> None:
    bins = gpu_make(plans.ZEROED)
    for _ in range(3):  # memory comes back from the allocator with what the last call left in it
        x = torch.randint(0, 10, (100_000,), device="cuda")
        assert torch.equal(bins(x, 10), torch.bincount(x, minlength=10).int())


def test_counters_over_calls_streams_and_shapes(gpu_make: Make) -> None:
    total = gpu_make(plans.COUNTER)
    x, short = randn(1_000_000), randn(3000)
    streams = [torch.cuda.Stream() for _ in range(3)]
    results = []
    torch.cuda.synchronize()
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append((total(x), total(short)))
    torch.cuda.synchronize()
    for long_sum, short_sum in results:
        torch.testing.assert_close(long_sum, x.sum(), rtol=1e-4, atol=1e-1)
        torch.testing.assert_close(short_sum, short.sum(), rtol=1e-4, atol=1e-2)


def test_in_place(gpu_make: Make) -> None:
    accumulate = gpu_make(plans.IN_PLACE)
    y, x = randn(20, 30), randn(20, 30)
    expected = y + x
    version = y._version
    assert accumulate(y, x) is None
    assert torch.equal(y, expected)
    assert y._version == version + 1  # so that a backward which saved y notices
    with torch.inference_mode():
        accumulate(randn(20, 30), x)
    halves = randn(20, 60)
    expected = halves[:, :30] + halves[:, 30:]
    accumulate(halves[:, :30], halves[:, 30:])  # columns of their own: ranges meet, elements do not
    assert torch.equal(halves[:, :30], expected)


def test_overlap_with_a_tensor_changed_in_place_is_refused(gpu_make: Make) -> None:
    accumulate = gpu_make(plans.IN_PLACE)
    y = randn(20, 30)
    accumulate(y, randn(20, 30))
    for other in (y, y.view(-1)[15:].as_strided((20, 28), (28, 1))[:, :28]):
        before = y.clone()
        target = y if other.shape == y.shape else y[:, :28]
        with pytest.raises(OverlappingTensors, match=r"y is changed in place and shares memory with x.*clone"):
            accumulate(target, other)
        assert torch.equal(y, before)
    with pytest.raises(NoKernelApplies, match="share memory"):
        accumulate(randn(1, 30).expand(20, 30), randn(20, 30))


def test_optional_tensor(gpu_make: Make) -> None:
    masked = gpu_make(plans.OPTIONAL)
    x = randn(1000)
    mask = x > 0
    assert torch.equal(masked(x), x)
    assert torch.equal(masked(x, mask), x * mask)
    assert torch.equal(masked(x, mask=None), x)


def test_large_shared_memory(gpu_make: Make) -> None:
    operation = gpu_make(plans.LARGE_SMEM)
    for n in (100, 50_000, 20_000):  # opting in for the largest must not be undone by a smaller one
        x = randn(n)
        assert torch.equal(operation(x), x.flip(0))
    x = randn(50_000)
    assert torch.equal(operation(x), x.flip(0))
    with pytest.raises(NoKernelApplies, match="smem_block"):
        operation(randn(100_000))


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_clusters(gpu_make: Make, size: int) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("clusters need compute capability 9.0")
    x = torch.arange(32, device="cuda", dtype=torch.int32)
    assert torch.equal(gpu_make(plans.CLUSTER)(x, size), x + 100 * size + x % size)


def test_cooperative(gpu_make: Make) -> None:
    x = randn(100_000).abs()
    torch.testing.assert_close(gpu_make(plans.COOPERATIVE)(x), x / x.sum(), rtol=1e-4, atol=1e-7)


def test_programmatic_launch(gpu_make: Make) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("programmatic launches need compute capability 9.0")
    chained = gpu_make(plans.PDL)
    for n in (1, 1000, 100_000):
        x = randn(n)
        torch.testing.assert_close(chained(x), x.flip(0) * 3 + 1)


def test_tensor_map(gpu_make: Make) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("tensor maps need compute capability 9.0")
    padded = gpu_make(plans.TENSOR_MAP)
    for _ in range(3):  # other addresses, other descriptors
        x = randn(30, 40)
        y = padded(x)
        assert y.shape == (32, 64)
        assert torch.equal(y[:30, :40], x)
        assert not y[30:].any()
        assert not y[:, 40:].any()


def test_library_step(gpu_make: Make) -> None:
    linear = gpu_make(plans.LIBRARY)
    x, w, b = randn(30, 40), randn(40, 50), randn(50)
    expected = x @ w + b
    torch.testing.assert_close(linear(x, w, b), expected)
    with torch.autocast("cuda"):  # changes what torch computes, not what a plan says
        torch.testing.assert_close(linear(x, w, b), expected)
    with pytest.raises(KernelFileError, match="library"):
        gpu_make(plans.LIBRARY, allow_library=False)


def test_when_skips_a_launch(gpu_make: Make) -> None:
    maybe = gpu_make(plans.WHEN)
    x = randn(500)
    assert torch.equal(maybe(x, True), -x)
    assert torch.equal(maybe(x, False), x)


def test_two_results_and_constants(gpu_make: Make) -> None:
    extremes = gpu_make(plans.TWO_RESULTS)
    for cols in (1, 5, 32):
        x = randn(70, cols)
        low, high = extremes(x)
        assert torch.equal(low, x.amin(1))
        assert torch.equal(high, x.amax(1))


def test_empty_tensors(gpu_make: Make) -> None:
    assert gpu_make(plans.TWICE)(randn(0, 4)).shape == (0, 4)
    low, high = gpu_make(plans.TWO_RESULTS)(randn(0, 5))
    assert low.shape == high.shape == (0,)
    accumulate = gpu_make(plans.IN_PLACE)
    accumulate(randn(0, 30), randn(0, 30))


# -- streams, threads, graphs, devices --


def test_it_runs_on_the_current_stream(gpu_make: Make) -> None:
    twice = gpu_make(plans.TWICE)
    x = randn(1 << 20)
    twice(x)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = x * 3  # only there once the sleep is over
        y = twice(late)
    stream.synchronize()
    assert torch.equal(y, x * 6)


def test_threads(gpu_make: Make) -> None:
    """Fresh threads have no current context; first calls race for one build; counters are shared on a stream."""
    total, scale = gpu_make(plans.COUNTER), gpu_make(plans.SCALE)
    x = randn(200_000)
    expected = x.sum()
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(100):
                torch.testing.assert_close(total(x), expected, rtol=1e-3, atol=1e-1)
                torch.testing.assert_close(scale(x, float(number + i)), x * (2.0 * (number + i)))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


@pytest.mark.parametrize("name", ["twice", "counter", "zeroed", "two launches", "tensor map", "library"])
def test_graph_capture_and_replay(gpu_make: Make, name: str) -> None:
    if name == "tensor map" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("tensor maps need compute capability 9.0")
    operation = gpu_make(plans.SAMPLES[name].text)
    inputs = {
        "twice": lambda: (randn(5000),),
        "counter": lambda: (randn(50_000),),
        "zeroed": lambda: (torch.randint(0, 10, (5000,), device="cuda"), 10),
        "two launches": lambda: (randn(30, 40),),
        "tensor map": lambda: (randn(30, 40),),
        "library": lambda: (randn(30, 40), randn(40, 50), randn(50)),
    }[name]
    held = inputs()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # library steps must warm up before a capture, as in any torch program
        operation(*held)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = operation(*held)
        again = operation(*held)
    for _ in range(3):
        for tensor, fresh in zip(held, inputs(), strict=True):
            if isinstance(tensor, torch.Tensor):
                tensor.copy_(fresh)
        graph.replay()
        expected = operation(*held)
        torch.cuda.synchronize()
        torch.testing.assert_close(captured, expected, rtol=1e-4, atol=1e-2)
        torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-2)


def test_prepare_is_enough_for_a_capture(gpu_make: Make) -> None:
    twice = gpu_make(plans.TWICE)
    twice.prepare("300x4:f16")
    x = randn(300, 4, dtype=torch.float16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = twice(x)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, x + x)


def test_building_during_a_capture_is_refused(gpu_make: Make) -> None:
    twice = gpu_make(plans.TWICE + "// never built before: captured\n")
    x = randn(77)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(BuildDuringCapture, match=r"twice\.prepare"), torch.cuda.graph(graph):
        twice(x)
    assert torch.equal(twice(x), x + x)  # the process is as usable as before


def test_another_current_device(gpu_make: Make) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device only")
    twice = gpu_make(plans.TWICE)
    x = randn(100)
    with torch.cuda.device(1):
        y = twice(x)
        assert torch.cuda.current_device() == 1
    assert y.device == x.device
    assert torch.equal(y, x + x)
    with pytest.raises(NotOnCuda, match="move them to one device"):
        gpu_make(plans.IN_PLACE)(randn(2, 2), torch.zeros(2, 2, device="cuda:1"))


# -- calls that are refused --


def test_wrong_calls_say_why(gpu_make: Make) -> None:
    twice = gpu_make(plans.TWICE)
    with pytest.raises(NoKernelApplies, match=r"k0\.cu:3:.*x\.dtype = i32"):
        twice(torch.zeros(4, device="cuda", dtype=torch.int32))
    with pytest.raises(NoKernelApplies, match="not contiguous"):
        twice(randn(4, 4).t())
    with pytest.raises(NoKernelApplies, match="aligned to 4 bytes"):
        twice(randn(5)[1:])
    with pytest.raises(NoKernelApplies, match=r"dtype torch\.complex64"):
        twice(torch.zeros(4, device="cuda", dtype=torch.complex64))
    with pytest.raises(NoKernelApplies, match="sparse"):
        twice(torch.eye(4, device="cuda").to_sparse())
    with pytest.raises(NotOnCuda, match="y is on cuda:0 and x on cpu; move them to one device"):
        gpu_make(plans.IN_PLACE)(randn(2, 2), torch.zeros(2, 2))
    with pytest.raises(CallError):
        twice(3)
    x = randn(4)
    assert torch.equal(twice(x), x + x)


def test_gradients(gpu_make: Make) -> None:
    twice = gpu_make(plans.TWICE)
    x = randn(8).requires_grad_()
    for _ in range(2):  # as a new call and as a known one
        with pytest.raises(GradientNotSupported, match=r"torch\.no_grad"):
            twice(x)
        with torch.no_grad():
            y = twice(x)
        assert not y.requires_grad
    assert torch.equal(twice(x.detach()), x.detach() * 2)
    weight = torch.nn.Parameter(randn(8), requires_grad=False)
    assert torch.equal(twice(weight), weight + weight)


def test_fallback_is_visible_and_strict_forbids_it(gpu_make: Make) -> None:
    x = torch.arange(4, device="cuda")
    with_reference = gpu_make(plans.TWICE, reference=lambda x: x + x)
    with pytest.warns(ReferenceUsed, match=r"(?s)twice: no kernel takes this call.*x\.dtype = i64"):
        assert torch.equal(with_reference(x), x * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(with_reference(x), x * 2)  # said once
    with pytest.warns(ReferenceUsed, match="not contiguous"):
        with_reference(randn(4, 4).t())
    strict = gpu_make(plans.TWICE, reference=lambda x: x + x, strict=True)
    with pytest.raises(NoKernelApplies) as caught:
        strict(x)
    assert len(caught.value.reasons) == 1


def test_the_first_file_that_applies_runs(gpu_make: Make) -> None:
    fast = plans.TWICE.replace("in [f64, f32, f16, bf16]", "== f16").replace("x[i] + x[i]", "T(7)")
    operation = gpu_make(fast, plans.TWICE)
    assert torch.equal(operation(randn(8, dtype=torch.float16)), torch.full((8,), 7.0, device="cuda").half())
    x = randn(8)
    assert torch.equal(operation(x), x + x)
    explanation = operation.explain(x)
    assert explanation.file is not None
    assert explanation.file.endswith("k1.cu")
    assert [reason.problem.line for reason in explanation.refused] == [3]
    assert "registers" in str(explanation)


def test_a_file_that_does_not_build(gpu_make: Make) -> None:
    broken = gpu_make(plans.TWICE.replace("x[i] + x[i]", "x[i] + undeclared"))
    with pytest.raises(BuildFailed, match=r"k0\.cu:\d+:\d*.*undeclared"):
        broken(randn(4))
