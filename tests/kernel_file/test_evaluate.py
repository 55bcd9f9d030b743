"""A plan at concrete shapes: choices, buffers, steps, late arguments, results."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.kernel_file import (
    CallError,
    ChoiceError,
    Code,
    DoesNotApply,
    Evaluation,
    KernelFile,
    Signature,
    bind,
    combinations,
    compare_out,
    evaluate,
    out_specs,
    parse,
)
from tilewright.records import (
    PROFILES,
    AbsentArgument,
    BoundPlan,
    Buffer,
    BufferRole,
    Clearing,
    DType,
    LateArgument,
    Launch,
    LibraryCall,
    ScalarArgument,
    ScalarType,
    TensorArgument,
    TensorSpec,
)

H200 = PROFILES["H200"]
T4 = PROFILES["T4"]


def plan(text: str, code: str = "__global__ void k() {}", name: str = "k.cu") -> KernelFile:
    lines = [line.strip() for line in text.strip().splitlines()]
    return parse("".join(f"//! {line}\n" for line in lines) + code + "\n", name)


def tensor(text: str, stride: tuple[int, ...] | None = None, alignment: int = 256) -> TensorSpec:
    spec = TensorSpec.parse(text)
    return TensorSpec(spec.dtype, spec.shape, spec.stride if stride is None else stride, alignment)


def launches(evaluation: Evaluation) -> list[Launch]:
    return [step for step in evaluation.steps if isinstance(step, Launch)]


def scalars(launch: Launch) -> list[Any]:
    return [argument.value for argument in launch.arguments if isinstance(argument, ScalarArgument)]


SILU = """
    op      silu(x) -> y
    out     y: x.dtype[x.shape]
    need    x.dtype == f32
    tune    THREADS = 256 | 128 | 512
    let     n = x.numel
    launch  k<<<ceil_div(n, 4 * THREADS), THREADS>>>(x, y, n)
"""
SILU_CODE = "__global__ void k(const float* x, float* y, long long n) { int t = THREADS; }"

SPLIT = """
    op      matmul(a, b) -> c
    need    a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0]
    let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
    out     c: f32[M, N]
    need    a.dtype == f32 and b.dtype == f32 and K % 4 == 0 and N % 4 == 0
    tune    TILE = 64 | 128
    tune    SPLITS = 4 | 1 | 2 | 8
    need    K / SPLITS >= 64
    scratch partial: f32[SPLITS, M, N]
    launch  part<TILE><<<dim3(ceil_div(N, TILE), ceil_div(M, TILE), SPLITS), 256>>>(
                a, b, partial, M, N, K, round_up(ceil_div(K, SPLITS), 4))
    launch  add<<<ceil_div(M * N / 4, 256), 256>>>(partial, c, M * N / 4)
"""
SPLIT_CODE = "template <int T> __global__ void part() { int s = SPLITS; }\n__global__ void add() {}"


def test_the_plan_of_a_pointwise_kernel() -> None:
    evaluation = evaluate(plan(SILU, SILU_CODE), {"x": tensor("1000x3:f32")}, H200)
    assert evaluation.choice == {"THREADS": 256}
    assert evaluation.constants == (("THREADS", 256),)
    assert evaluation.buffers == (Buffer("y", BufferRole.OUT, tensor("1000x3:f32")),)
    (launch,) = launches(evaluation)
    assert (launch.kernel, launch.grid, launch.block) == ("k", (3, 1, 1), (256, 1, 1))
    assert launch.arguments == (TensorArgument("x"), TensorArgument("y"), ScalarArgument(3000))
    assert evaluation.late_values({}) == ()
    request = evaluation.build_request()
    assert request is not None
    assert (request.constants, request.kernels, request.arch) == ((("THREADS", 256),), ("k",), "sm_90a")
    assert request.source == evaluation.file.text


def test_scratch_templates_and_two_launches() -> None:
    file = plan(SPLIT, SPLIT_CODE)
    evaluation = evaluate(file, {"a": tensor("100x512:f32"), "b": tensor("512x200:f32")}, H200)
    assert evaluation.choice == {"TILE": 64, "SPLITS": 4}
    assert [b.name for b in evaluation.buffers] == ["c", "partial"]
    assert evaluation.buffers[1] == Buffer("partial", BufferRole.SCRATCH, tensor("4x100x200:f32"))
    first, second = launches(evaluation)
    assert (first.kernel, first.grid) == ("part<64>", (4, 2, 4))
    assert scalars(first) == [100, 200, 512, 128]
    assert (second.kernel, second.grid, scalars(second)) == ("add", (20, 1, 1), [5000])
    assert second.arguments[2] == ScalarArgument(5000, divided=True)
    assert evaluation.build_request().kernels == ("part<64>", "add")
    assert first.places[0] == (11, 5)  # arguments on a continuation line have their own


def test_choices_are_tried_in_written_order_last_fastest() -> None:
    file = plan(SPLIT, SPLIT_CODE)
    arguments = {"a": tensor("8x128:f32"), "b": tensor("128x8:f32")}
    assert evaluate(file, arguments, H200).choice == {"TILE": 64, "SPLITS": 1}
    expected = [{"TILE": tile, "SPLITS": splits} for tile in (64, 128) for splits in (1, 2)]
    assert list(combinations(file, arguments, H200)) == expected


def test_a_given_choice_is_used_and_must_hold() -> None:
    file = plan(SPLIT, SPLIT_CODE)
    arguments = {"a": tensor("8x128:f32"), "b": tensor("128x8:f32")}
    assert evaluate(file, arguments, H200, {"TILE": 128, "SPLITS": 2}).choice == {"TILE": 128, "SPLITS": 2}
    assert evaluate(file, arguments, H200, {"TILE": 128}).choice == {"TILE": 128, "SPLITS": 1}
    with pytest.raises(DoesNotApply, match=r"`K / SPLITS >= 64` is false, with K = 128, SPLITS = 8"):
        evaluate(file, arguments, H200, {"TILE": 64, "SPLITS": 8})
    with pytest.raises(ChoiceError, match=r"SPLITS = 3 is not a choice of the file; it has 4 \| 1 \| 2 \| 8"):
        evaluate(file, arguments, H200, {"SPLITS": 3})
    with pytest.raises(ChoiceError, match="WARPS is not a `tune`"):
        evaluate(file, arguments, H200, {"WARPS": 3})


def test_a_failing_line_decides_for_all_choices_it_does_not_depend_on() -> None:
    names = "ABCDEFGHIJKL"
    tunes = "\n".join(f"tune {name} = 1 | 2" for name in names)
    total = " + ".join(names)
    text = f"op f(x, n: int) -> y\nout y: f32[1]\n{tunes}\nneed A + B > 2\nneed L == 3\nlaunch k<<<{total}, 1>>>(y, x)"
    file = plan(text, "__global__ void k(float* y, const float* x) { int t = 0; }")
    runs = 0
    for line in file.compiled.lines:
        for part in getattr(line, "parts", ()):
            original = part.run

            def counted(values: Any, original: Any = original) -> Any:
                nonlocal runs
                runs += 1
                return original(values)

            object.__setattr__(part, "run", counted)
    with pytest.raises(DoesNotApply) as caught:
        evaluate(file, {"x": tensor("1:f32"), "n": 1}, H200)
    assert "`L == 3` is false, with L = 1; no other choice of L" in caught.value.problem.found
    # A = B = 1 fails the first need. B = 2 reaches the second, which depends on L alone: L = 1 and L = 2 decide.
    assert runs == 1 + 2 + 2


def test_skipped_steps_leave_no_trace() -> None:
    text = """
        op      f(x) -> y
        out     y: f32[x.shape]
        launch  a<<<x.numel / 16, 32>>>(x, y)
        launch  k<<<1, 32>>>(x, y, x.shape[0] / x.numel) pdl when x.numel % 16 != 0
        launch  c<x.numel><<<1, 32>>>(x, y) pdl
    """
    code = "__global__ void a() {}\n__global__ void k() {}\ntemplate <int N> __global__ void c() {}"
    file = plan(text, code)

    def steps(shape: str) -> list[tuple[str, bool]]:
        return [(x.kernel, x.pdl) for x in launches(evaluate(file, {"x": tensor(shape)}, H200))]

    assert steps("32:f32") == [("a", False), ("c<32>", False)]  # the launch before was skipped: no overlap
    assert steps("33:f32") == [("a", False), ("k", True), ("c<33>", True)]
    assert steps("0:f32") == [("c<0>", False)]
    assert steps("5:f32") == [("k", False), ("c<5>", True)]  # an empty grid skips like a false `when`


def test_template_arguments_are_cpp() -> None:
    text = """
        op      f(x, flag: bool, n: int) -> y
        out     y: f32[1]
        launch  k<x.dtype, flag, n, -n, 2147483647, 4294967296, -9223372036854775807 - 1><<<1, 1>>>(x, y)
    """
    file = plan(
        text, "template <class T, bool F, int A, int B, int C, long long D, long long E> __global__ void k() {}"
    )
    for dtype in DType:
        (launch,) = launches(evaluate(file, {"x": tensor(f"1:{dtype.value}"), "flag": True, "n": 3}, H200))
        assert launch.kernel == (f"k<{dtype.cpp}, true, 3, -3, 2147483647, 4294967296LL, (-9223372036854775807LL - 1)>")


def test_buffers() -> None:
    text = """
        op      f(x) -> y, z
        out     y: x.dtype[x.shape] stride [x.shape[1] * x.shape[2], 1, x.shape[1]]
        out     z: i64[]
        scratch lse: f32[x.shape[:-1]]
        scratch a: f32[x.shape[:2], 7] zeroed
        scratch t: i32[4] counter
        const   T = x.dtype
        scratch u: T[3]
        launch  k<<<1, 1>>>(x, y, z, lse, a, t, u, a.numel, u.itemsize)
    """
    evaluation = evaluate(plan(text, "__global__ void k() { T t; }"), {"x": tensor("2x3x4:f16")}, H200)
    assert evaluation.buffers == (
        Buffer("y", BufferRole.OUT, TensorSpec(DType.F16, (2, 3, 4), (12, 1, 3))),
        Buffer("z", BufferRole.OUT, tensor(":i64")),
        Buffer("lse", BufferRole.SCRATCH, tensor("2x3:f32")),
        Buffer("a", BufferRole.SCRATCH, tensor("2x3x7:f32"), Clearing.ZEROED),
        Buffer("t", BufferRole.SCRATCH, tensor("4:i32"), Clearing.COUNTER),
        Buffer("u", BufferRole.SCRATCH, tensor("3:f16")),
    )
    assert scalars(launches(evaluation)[0]) == [42, 2]
    assert evaluation.constants == (("T", DType.F16),)


def test_lists_are_spliced_and_optionals_may_be_absent() -> None:
    text = """
        op      f(x, m?, pads: int[2]) -> y
        out     y: x.dtype[x.shape]
        accept  x: strided
        let     ms = m.stride[0] if has(m) else 0
        launch  k<<<1, 1>>>(x, m, y, x.stride, [1, [2, 3]], x.shape[5:], ms)
        launch  k<<<1, pads[0]>>>(x, m, y, pads)
    """
    file = plan(text)
    arguments = {"x": tensor("2x3:f32", (1, 2)), "m": None, "pads": (5, 6)}
    first, second = launches(evaluate(file, arguments, H200))
    assert first.arguments[1] == AbsentArgument("m")
    assert scalars(first) == [1, 2, 1, 2, 3, 0]
    assert scalars(second) == [5, 6]
    first, _ = launches(evaluate(file, {**arguments, "m": tensor("4x9:f32")}, H200))
    assert first.arguments[1] == TensorArgument("m")
    assert scalars(first)[-1] == 9


def test_library_calls() -> None:
    text = """
        op      conv(x, w, bias?, stride: int[2]) -> y
        out     y: f32[x.shape]
        scratch t: f32[4, 4]
        library t = aten.convolution(x, w, bias, stride, [0, 0], false, 1.5, f32, none, -2)
        launch  k<<<1, 1>>>(t, y)
    """
    arguments = {"x": tensor("4x4:f32"), "w": tensor("4x4:f32"), "bias": None, "stride": [1, 2]}
    call, _ = evaluate(plan(text), arguments, H200).steps
    expected = (TensorArgument("x"), TensorArgument("w"), None, (1, 2), (0, 0), False, 1.5, DType.F32, None, -2)
    assert call == LibraryCall("t", "aten.convolution", expected, 4)


def test_a_file_of_library_steps_alone_asks_for_no_build() -> None:
    file = plan("op f(a, b) -> y\nout y: f32[a.shape[0], b.shape[1]]\nlibrary y = aten.mm(a, b)", "")
    evaluation = evaluate(file, {"a": tensor("4x8:f32"), "b": tensor("8x2:f32")}, H200)
    assert evaluation.build_request() is None
    call = LibraryCall("y", "aten.mm", (TensorArgument("a"), TensorArgument("b")), 3)
    assert bind(evaluation, None, H200) == BoundPlan(evaluation.buffers, (), (call,))


# -- scalars that decide, and scalars that are passed on --

SCALARS = """
    op      f(x, p: float, seed: int, dim: int, flag: bool, pads: int[], axes: int[2], w: float?) -> y
    out     y: f32[x.shape]
    need    dim >= 0
    let     keep = 1.0 - p, scale = 1.0 / keep
    let     block = 32 * (dim + 1)
    const   FLAG = flag
    launch  k<<<1, block>>>(x, y, p, scale, seed, seed / 2, dim, pads, [axes[0], seed + dim], w if has(w) else 0.5)
"""
SCALARS_CODE = "__global__ void k() { bool f = FLAG; }"


def scalar_arguments(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"x": tensor("8:f32"), "p": 0.5, "seed": 11, "dim": 1, "flag": True, "pads": (7, 8)}
    return {**given, "axes": (3, 4), "w": None, **changes}


def test_only_deciding_scalars_are_fixed() -> None:
    file = plan(SCALARS, SCALARS_CODE)
    assert file.compiled.deciding == {"dim", "flag"}
    assert file.compiled.late == {"p", "seed", "pads", "axes", "w"}
    evaluation = evaluate(file, scalar_arguments(), H200)
    (launch,) = launches(evaluation)
    int_, float_ = ScalarType.INT, ScalarType.FLOAT
    assert launch.arguments[2:] == (
        LateArgument(0, float_),
        LateArgument(1, float_),
        LateArgument(2, int_),
        LateArgument(3, int_, divided=True),
        ScalarArgument(1),
        LateArgument(4, int_),
        LateArgument(5, int_),
        LateArgument(6, int_),
        LateArgument(7, int_),
        LateArgument(8, float_),
    )
    assert evaluation.late_values(scalar_arguments()) == (0.5, 2.0, 11, 5, 7, 8, 3, 12, 0.5)
    other = scalar_arguments(p=0.75, seed=21, pads=(1, 2), axes=(9, 9))
    assert evaluation.late_values(other) == (0.75, 4.0, 21, 10, 1, 2, 9, 22, 0.5)


def test_late_values_take_ints_for_floats() -> None:
    file = plan("op f(x, s: float) -> y\nout y: f32[1]\nlet h = s / 2\nlaunch k<<<1, 1>>>(x, y, h)")
    evaluation = evaluate(file, {"x": tensor("1:f32"), "s": 3}, H200)
    assert evaluation.late_values({"s": 3}) == (1.5,)


def test_a_late_let_that_fails_means_does_not_apply() -> None:
    file = plan(SCALARS, SCALARS_CODE)
    evaluation = evaluate(file, scalar_arguments(), H200)
    with pytest.raises(DoesNotApply, match=r"`1.0 / keep` divides by zero, with keep = 0.0"):
        evaluation.late_values(scalar_arguments(p=1.0))
    with pytest.raises(DoesNotApply, match="divides by zero"):
        evaluate(file, scalar_arguments(p=1.0), H200)


@pytest.mark.parametrize(
    ("launch", "deciding"),
    [
        ("k<<<n, 1>>>(x, y)", {"n"}),
        ("k<<<1, n>>>(x, y)", {"n"}),
        ("k<<<1, 1, n>>>(x, y)", {"n"}),
        ("k<n><<<1, 1>>>(x, y)", {"n"}),
        ("k<<<2, 1>>>(x, y) cluster(n)", {"n"}),
        ("k<<<1, 1>>>(x, y) when n > 1", {"n"}),
        ("k<<<1, 1>>>(x, y, x.shape[:n])", {"n"}),
        ("k<<<1, 1>>>(x if n > 1 else y, y)", {"n"}),
        ("k<<<1, 1>>>(x, y, l[:1])", {"l"}),
        ("k<<<1, 1>>>(x, y, l)", set()),
        ("k<<<1, 1>>>(x, y, l[0], n * 2, [n, l[1]])", set()),
        ("k<<<1, 1>>>(x, y, x.shape[n])", set()),
        ("k<<<v, 1>>>(x, y)", {"n"}),
        ("k<<<1, 1>>>(x, y, v)", set()),
    ],
)
def test_what_decides(launch: str, deciding: set[str]) -> None:
    file = plan(f"op f(x, n: int, l: int[]) -> y\nout y: f32[1]\nlet u = n + 1, v = u * 2\nlaunch {launch}")
    assert file.compiled.deciding == deciding


# -- layout --


def test_layout_decides_before_any_line() -> None:
    file = plan(SILU, SILU_CODE)
    for spec, found in (
        (tensor("4x8:f32", (1, 4)), "strides [1, 4], which is not contiguous"),
        (tensor("8:f32", alignment=4), "aligned to 4 bytes, not to 16"),
    ):
        with pytest.raises(DoesNotApply) as caught:
            evaluate(file, {"x": spec}, H200)
        assert found in caught.value.problem.found
        assert (caught.value.problem.code, caught.value.problem.line) == (Code.DOES_NOT_APPLY, 1)
        assert list(combinations(file, {"x": spec}, H200)) == []
    evaluate(file, {"x": tensor("0:f32", alignment=1)}, H200)  # nothing to read, nothing to align
    evaluate(file, {"x": tensor("1x8:f32", (999, 1))}, H200)  # the stride of a single row is never used


def test_accept_widens_layout() -> None:
    text = """
        op      f(x, r!) -> y
        out     y: f32[x.shape]
        accept  x: strided, unaligned
        accept  r: strided
        launch  k<<<1, 1>>>(x, r, y)
    """
    file = plan(text)
    good = {"x": tensor("4x8:f32", (1, 4), 4), "r": tensor("4x8:f32", (1, 4))}
    evaluate(file, good, H200)
    for changed, found in (
        ({"x": tensor("4:f32", alignment=2)}, "aligned to 2 bytes, not to 4"),
        ({"r": tensor("4x8:f32", (0, 1))}, "elements share memory"),
        ({"r": tensor("4x8:f32", (4, 1))}, "elements share memory"),
        ({"r": tensor("4:f32", alignment=8)}, "aligned to 8 bytes, not to 16"),
    ):
        with pytest.raises(DoesNotApply) as caught:
            evaluate(file, {**good, **changed}, H200)
        assert found in caught.value.problem.found


# -- calls --


def test_calls_are_made_regular() -> None:
    op = plan(
        "op f(x, m?, n: int, p: float = 0.5, b: bool = false, l: int[2] = [1, 2], s: float? = none) -> y\n"
        "out y: f32[1]\nlaunch k<<<1, 1>>>(x, m, n, p, b, l, s if has(s) else 1.0, y)"
    ).plan.op
    x = object()
    assert Signature(op).normalise((x, None, 3), {}) == (x, None, 3, 0.5, False, (1, 2), None)
    assert Signature(op).normalise((x,), {"n": 3, "p": 2, "s": 1, "l": [5, 6]}) == (x, None, 3, 2.0, False, (5, 6), 1.0)
    assert Signature(op).normalise((x, x, 3, 1.0, True, 4), {}) == (x, x, 3, 1.0, True, (4, 4), None)
    assert type(Signature(op).normalise((x, None, 3, 2), {})[3]) is float
    for args, kwargs, found in (
        ((), {}, "misses 'x'"),
        ((x, None), {}, "misses 'n'"),
        ((x, None, 3), {"n": 3}, "got 'n' twice"),
        ((x, None, 3), {"q": 3}, "has no parameter 'q'"),
        ((x,) * 8, {}, "takes 7 arguments, 8 were given"),
        ((3, None, 3), {}, "x is a tensor; found int 3"),
        ((None, None, 3), {}, "x is a tensor; found None"),
        ((x, None, True), {}, "n is an int; found bool True"),
        ((x, None, 2.5), {}, "n is an int; found float 2.5"),
        ((x, None, 2**63), {}, "n is a 64-bit int"),
        ((x, None, 3, True), {}, "p is a float; found bool True"),
        ((x, None, 3, "a"), {}, "p is a float; found str 'a'"),
        ((x, None, 3, 10**400), {}, "p is a float"),
        ((x, None, 3, 0.5, 1), {}, "b is a bool; found int 1"),
        ((x, None, 3), {"l": [1, 2, 3]}, "l has 2 items; found 3"),
        ((x, None, 3), {"l": [1, 2.5]}, "l is an int; found float 2.5"),
        ((x, None, 3), {"l": "ab"}, "l is a list; found str 'ab'"),
    ):
        with pytest.raises(CallError) as caught:
            Signature(op).normalise(args, kwargs)
        assert found in str(caught.value)
        assert str(caught.value).startswith("f()")
    text = "f(x, m?, n: int, p: float = 0.5, b: bool = false, l: int[2] = [1, 2], s: float? = none) -> y"
    assert str(Signature(op)) == text


def test_evaluate_checks_its_arguments() -> None:
    file = plan(SILU, SILU_CODE)
    with pytest.raises(CallError, match="described by a TensorSpec"):
        evaluate(file, {"x": object()}, H200)  # type: ignore[dict-item]
    with pytest.raises(CallError, match="misses 'x'"):
        evaluate(file, {}, H200)
    with pytest.raises(CallError, match="give shape and stride"):
        evaluate(file, {"x": TensorSpec(DType.F32, (2, 2), (1,))}, H200)


# -- results --


def test_results_without_a_choice() -> None:
    file = plan(SPLIT, SPLIT_CODE)
    good = {"a": tensor("8x128:f32"), "b": tensor("128x12:f32")}
    assert out_specs(file, good) == (tensor("8x12:f32"),)
    with pytest.raises(DoesNotApply, match=r"a\.dtype == f32"):
        out_specs(file, {**good, "a": tensor("8x128:f16")})
    assert out_specs(file, {**good, "a": tensor("8x128:f16")}, check_needs=False) == (tensor("8x12:f32"),)
    with pytest.raises(DoesNotApply, match=r"a\.ndim == 2"):
        out_specs(file, {**good, "a": tensor("8:f32")})
    with pytest.raises(DoesNotApply, match="index 1 is outside"):
        out_specs(file, {**good, "b": tensor("8:f32")}, check_needs=False)


def test_results_in_the_order_of_the_op() -> None:
    file = plan("op f(x) -> a, b\nout b: f32[2]\nout a: i64[x.shape]\nneed device.cc < 0\nlaunch k<<<1, 1>>>(x, a, b)")
    assert out_specs(file, {"x": tensor("3:f32")}) == (tensor("3:i64"), tensor("2:f32"))


def test_outputs_against_a_task() -> None:
    evaluation = evaluate(plan(SILU, SILU_CODE), {"x": tensor("8x2:f32")}, H200)
    assert compare_out(evaluation, {"y": tensor("8x2:f32", (1, 8))}) == ()  # strides are the file's own
    for expected, found in (
        ({"y": tensor("8x3:f32")}, "y is f32[8, 2], the task has f32[8, 3]"),
        ({"y": tensor("8x2:f16")}, "y is f32[8, 2], the task has f16[8, 2]"),
        ({"y": tensor("8x2:f32"), "z": tensor("1:f32")}, "no `out` for z"),
        ({}, "y: f32[8, 2] is no result of the task"),
    ):
        (problem,) = compare_out(evaluation, expected)
        assert (problem.code, problem.found) == (Code.OUT, found)
        assert problem.line == (1 if "z" in expected else 2)


def test_the_device_is_the_profile_given() -> None:
    file = plan("op f(x) -> y\nout y: f32[1]\nneed device.cc >= 80\nlaunch k<<<device.sms, 32>>>(x, y)")
    assert launches(evaluate(file, {"x": tensor("1:f32")}, H200))[0].grid == (132, 1, 1)
    with pytest.raises(DoesNotApply, match=r"`device.cc >= 80` is false, with device.cc = 75"):
        evaluate(file, {"x": tensor("1:f32")}, T4)


def test_a_cluster_of_one_needs_no_clusters() -> None:
    file = plan("op f(x) -> y\nout y: f32[1]\ntune C = 2 | 1\nneed device.cc >= 90 or C == 1\n"
                "launch k<<<4, 32>>>(x, y) cluster(C)", "__global__ void k() { int c = C; }")  # fmt: skip
    assert launches(evaluate(file, {"x": tensor("1:f32")}, H200))[0].cluster == (2, 1, 1)
    assert launches(evaluate(file, {"x": tensor("1:f32")}, T4))[0].cluster is None
