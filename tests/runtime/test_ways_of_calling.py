"""Every way of calling an operation that docs/calling.md lists: each works, or raises one clear sentence."""

from __future__ import annotations

import contextlib
import copy
import pickle
import re
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime import plans
from tests.runtime.conftest import Make
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.kernel_file import CallError
from tilewright.runtime import (
    CallRefused,
    GradientNotSupported,
    LoadError,
    NoKernelApplies,
    NotOnCuda,
    Operation,
    OverlappingTensors,
    ReferenceUsed,
    load,
)

CUBE = plans.TWICE.replace("twice", "cube").replace("x[i] + x[i]", "x[i] * x[i] * x[i]")
PAGE = Path(__file__).parents[2] / "docs" / "calling.md"


def scale_reference(x: torch.Tensor, factor: float, shift: int) -> torch.Tensor:
    return x * (2.0 * factor) + shift


def extremes_reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amin(1), x.amax(1)


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 6)


@pytest.fixture
def cube(make: Make) -> Operation:
    return make(CUBE, reference=plans.cube_reference)


@pytest.fixture
def bare(make: Make) -> Operation:
    """The same without a reference."""
    return make(CUBE)


@pytest.fixture
def scale(make: Make) -> Operation:
    return make(plans.SCALE, reference=scale_reference)


@pytest.fixture
def extremes(make: Make) -> Operation:
    return make(plans.TWO_RESULTS, reference=extremes_reference)


@pytest.fixture
def accumulate(make: Make) -> Operation:
    return make(plans.IN_PLACE)


@pytest.fixture(autouse=True)
def strangers() -> Iterator[None]:
    """Only what a test asks for may run the reference."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReferenceUsed)
        yield


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected)


def compiled(function: Callable[..., Any], graphs: list[str], **options: Any) -> Callable[..., Any]:
    """Compiled whole, with what the graphs call."""

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module.code)
        return module.forward

    torch._dynamo.reset()
    made: Callable[..., Any] = torch.compile(function, backend=backend, fullgraph=True, **options)
    return made


# -- plain calls --


def test_plain(cube: Operation, x: torch.Tensor) -> None:
    close(cube(x), x**3)


def test_keywords_and_defaults(scale: Operation, x: torch.Tensor) -> None:
    close(scale(x, factor=0.5), x)
    close(scale(shift=2, factor=1, x=x), 2 * x + 2)
    with pytest.raises(CallError, match="no parameter 'factr'"):
        scale(x, factr=0.5)


def test_several_results(extremes: Operation, x: torch.Tensor) -> None:
    low, high = extremes(x)
    close((low, high), (x.amin(1), x.amax(1)))


def test_in_place(accumulate: Operation, x: torch.Tensor) -> None:
    y = x.clone()
    version = y._version
    assert accumulate(y, x) is None
    close(y, 2 * x)
    assert y._version > version
    with pytest.raises(OverlappingTensors, match=r"pass x\.clone\(\)"):
        accumulate(y, y)


def accumulate_reference(y: torch.Tensor, x: torch.Tensor) -> None:
    y.add_(x)


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def test_in_place_by_the_reference(make: Make, x: torch.Tensor) -> None:
    warnings.simplefilter("ignore", ReferenceUsed)
    wide = x.double()
    op = make(plans.IN_PLACE, reference=accumulate_reference)
    returning = make(plans.IN_PLACE, reference=lambda y, x: y + x)
    for mode in (contextlib.nullcontext, Watching):
        y = wide.clone()
        version = y._version
        with mode():
            assert op(y, wide) is None
            with pytest.raises(CallRefused, match=r"write them into y, such as y\.copy_"):
                returning(wide.clone(), wide)
        close(y, 2 * wide)
        assert y._version > version
    idle = make(plans.IN_PLACE, reference=lambda y, x: None)
    warnings.simplefilter("always", ReferenceUsed)
    with pytest.warns(ReferenceUsed, match="left y as it was, which the op changes"):
        idle(wide.clone(), wide)


def test_strided(cube: Operation, bare: Operation, make: Make, x: torch.Tensor) -> None:
    with pytest.raises(NoKernelApplies, match=r"not contiguous; pass x\.contiguous\(\)"):
        bare(x.t())
    with pytest.warns(ReferenceUsed, match="not contiguous"):
        close(cube(x.t()), x.t() ** 3)
    close(make(plans.ANY_STRIDES)(x.t()), x.t() + 1)


def test_empty_and_scalar_tensors(cube: Operation, x: torch.Tensor) -> None:
    assert cube(x[:0]).shape == (0, 6)
    close(cube(torch.tensor(2.0)), torch.tensor(8.0))


def scaled_reference(x: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * scale[..., None] * weight, x.amax(-1)


def test_another_rank(make: Make) -> None:
    scaled, weight = make(plans.LEADING, reference=scaled_reference), torch.randn(5)
    for leading in ((3,), (2, 3), (), (2, 1, 3), (1,), (0, 3)):
        x, scale = torch.randn(*leading, 5), torch.randn(leading)
        y, top = scaled(x, scale, weight)
        assert (y.shape, top.shape, y.is_contiguous()) == (x.shape, scale.shape, True)
        if x.numel():
            close((y, top), scaled_reference(x, scale, weight))
    x, scale = torch.randn(2, 3, 5), torch.randn(2, 3)
    with pytest.raises(ReferenceUsed, match=r"x leads with \[2, 3\] and scale with \[3, 2\]"):
        scaled(x, scale.t().contiguous(), weight)
    with pytest.raises(ReferenceUsed, match="not contiguous"):
        scaled(torch.randn(5, 2, 3).permute(1, 2, 0), scale, weight)
    torch.library.opcheck(scaled.torch_op, (x, scale, weight))
    graphs: list[str] = []
    function = compiled(lambda x, scale: scaled(x, scale, weight)[0] + 1, graphs, dynamic=True)
    for batch in (2, 6, 7):
        x, scale = torch.randn(batch, 4, 5), torch.randn(batch, 4)
        close(function(x, scale), scaled_reference(x, scale, weight)[0] + 1)
    assert len(graphs) == 1


def test_another_dtype(cube: Operation, bare: Operation, x: torch.Tensor) -> None:
    with pytest.raises(NoKernelApplies, match=r"x\.dtype = i64"):
        bare(x.long())
    with pytest.warns(ReferenceUsed, match=r"x\.dtype = i64"):
        close(cube(x.long()), x.long() ** 3)


def test_parameters_and_other_subclasses(bare: Operation, x: torch.Tensor) -> None:
    class Tagged(torch.Tensor):
        pass

    close(bare(torch.nn.Parameter(x, requires_grad=False)), x**3)
    result = bare(x.as_subclass(Tagged))
    assert type(result) is Tagged
    close(result.as_subclass(torch.Tensor), x**3)


def test_tensors_of_other_kinds(bare: Operation, cube: Operation) -> None:
    for other, reason in (
        (torch.eye(4).to_sparse(), "sparse_coo tensor; pass x.to_dense()"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested tensor; pass x.to_padded_tensor"),
        (torch.zeros(4, dtype=torch.complex64), "dtype torch.complex64"),
        (torch.zeros(4, dtype=torch.complex64).conj().imag, "negated view; pass x.resolve_neg()"),
    ):
        with pytest.raises(NoKernelApplies, match=re.escape(reason)):
            bare(other)
    with pytest.warns(ReferenceUsed, match="not contiguous"):  # zeros without memory become one zero for all
        close(cube(torch._efficientzerotensor((4, 6))), torch.zeros(4, 6))


def test_devices_mixed(make: Make, x: torch.Tensor) -> None:
    linear = make(plans.LIBRARY)
    with pytest.raises(NotOnCuda, match="on cpu and on meta; move them to one device"):
        linear(x, x.t().contiguous().to("meta"), torch.zeros(4))


def test_distributed_tensors(bare: Operation, x: torch.Tensor) -> None:
    kind = type("DTensor", (torch.Tensor,), {"__module__": "torch.distributed.tensor"})
    with pytest.raises(CallRefused, match=r"x is a DTensor.*pass x\.to_local\(\)"):
        bare(x.as_subclass(kind))


def test_threads(cube: Operation, x: torch.Tensor) -> None:
    results: dict[int, torch.Tensor] = {}

    def call(number: int) -> None:
        results[number] = cube(x + number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        close(results[number], (x + number) ** 3)


# -- without content --


def test_meta_tensors(make: Make, bare: Operation, x: torch.Tensor) -> None:
    result = make(plans.TRANSPOSED)(x.to("meta"))
    assert (result.device.type, result.stride()) == ("meta", (1, 4))
    with pytest.raises(NoKernelApplies, match=r"x\.dtype"):
        bare(x.to("meta", torch.int8))


def test_fake_tensors(bare: Operation, x: torch.Tensor) -> None:
    with FakeTensorMode() as mode:
        result = bare(torch.empty(3, 5, device="cuda"))
        assert (result.shape, str(result.device)) == ((3, 5), "cuda:0")
        assert type(bare(mode.from_tensor(x))).__name__ == "FakeTensor"
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(bare(x)).__name__ == "FakeTensor"  # what is given has content, and yet nothing may run


# -- gradients --


def test_gradients_by_the_reference(cube: Operation, x: torch.Tensor) -> None:
    y = x.clone().requires_grad_()
    with pytest.warns(ReferenceUsed, match="x requires grad and the operation has no backward kernel") as said:
        cube(y).sum().backward()
    assert said[0].filename == __file__
    close(y.grad, 3 * x**2)
    cube(y).sum().backward()  # said once
    close(y.grad, 6 * x**2)


SLOPE = """\
//! op      slope(grad_y, x) -> grad_x
//! out     grad_x: f32[x.shape]
//! need    x.dtype == f32 and grad_y.dtype == f32 and grad_y.numel == x.numel
//! let     n = x.numel
//! launch  slope<<<ceil_div(n, 128), 128>>>(grad_y, x, grad_x, n)
__global__ void slope(const float* grad_y, const float* x, float* grad_x, long long n) {
  long long i = blockIdx.x * 128ll + threadIdx.x;
  if (i < n) grad_x[i] = 3.f * x[i] * x[i] * grad_y[i];
}
"""


def test_gradients_by_a_kernel(cube: Operation, x: torch.Tensor, tmp_path: Path) -> None:
    (tmp_path / "slope.cu").write_text(SLOPE)
    slope = load(tmp_path / "slope.cu")
    both = cube.with_backward(slope, gradients={"y": "grad_y"}, by=["x"])
    y = x.clone().requires_grad_()
    both(y).sum().backward()  # without a word: no reference runs
    close(y.grad, 3 * x**2)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: both(x).sum(), backend="aot_eager", fullgraph=True)
    compiled(y).backward()
    close(y.grad, 6 * x**2)
    close(pickle.loads(pickle.dumps(both))(x), x**3)
    (once,) = torch.autograd.grad(both(y).sum(), y, create_graph=True)
    close(torch.autograd.grad(once.sum(), y)[0], 6 * x)
    with pytest.raises(LoadError, match="slope is no backward of cube: cube has no z"):
        cube.with_backward(slope, gradients={"z": "grad_y"}, by=["x"])


def test_gradients_of_gradients(cube: Operation, x: torch.Tensor) -> None:
    with pytest.warns(ReferenceUsed):
        assert torch.autograd.gradcheck(cube, x[:1].double().requires_grad_())
    assert torch.autograd.gradgradcheck(cube, x[:1].double().requires_grad_())


def test_gradients_without_a_reference(bare: Operation, accumulate: Operation, x: torch.Tensor) -> None:
    with pytest.raises(GradientNotSupported, match=r"call it under torch\.no_grad\(\), or pass x\.detach\(\)"):
        bare(x.clone().requires_grad_())
    with pytest.raises(GradientNotSupported, match="x requires grad"):
        accumulate(x.clone(), x.clone().requires_grad_())


def test_no_grad_and_inference_mode(bare: Operation, x: torch.Tensor) -> None:
    wanting = x.clone().requires_grad_()
    with torch.no_grad():
        assert not bare(wanting).requires_grad
    with torch.inference_mode():
        assert bare(x).is_inference()
        close(bare(torch.ones(3)), torch.ones(3))


def test_whole_numbers_have_no_gradient(make: Make) -> None:
    operation = make(plans.ZEROED, reference=lambda x, count: torch.bincount(x, minlength=count).int())
    assert not operation(torch.tensor([1, 2, 2]), 4).requires_grad


def test_torch_func(cube: Operation, bare: Operation, x: torch.Tensor) -> None:
    with pytest.warns(ReferenceUsed):
        close(torch.func.grad(lambda x: cube(x).sum())(x), 3 * x**2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceUsed)
        close(torch.func.jacrev(cube)(x[0]), torch.diag(3 * x[0] ** 2))
        close(torch.func.hessian(lambda x: cube(x).sum())(x[0]), torch.diag(6 * x[0]))
        close(torch.vmap(torch.func.grad(lambda x: cube(x).sum()))(x), 3 * x**2)
    module = torch.nn.Linear(6, 6, bias=False)

    class Cubes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return bare(self.inner(x))

    with torch.no_grad():
        weight = torch.eye(6)
        close(torch.func.functional_call(Cubes(), {"inner.weight": weight}, (x,)), x**3)


def test_tangents(cube: Operation, bare: Operation, x: torch.Tensor) -> None:
    with pytest.warns(ReferenceUsed, match="forward-mode differentiation"):
        close(torch.func.jvp(cube, (x,), (x,))[1], 3 * x**3)
    with forward_ad.dual_level():
        close(forward_ad.unpack_dual(cube(forward_ad.make_dual(x, x))).tangent, 3 * x**3)
        with pytest.raises(GradientNotSupported, match="give the operation a reference"):
            bare(forward_ad.make_dual(x, x))


def test_vmap(cube: Operation, bare: Operation, x: torch.Tensor) -> None:
    with pytest.warns(ReferenceUsed, match=r"under torch\.func"):
        close(torch.vmap(cube)(x), x**3)
    close(torch.vmap(cube, in_dims=1, out_dims=1)(x), x**3)
    assert torch.vmap(cube)(x[:0]).shape == (0, 6)
    with pytest.raises(GradientNotSupported, match="see into PyTorch code, not into a kernel"):
        torch.vmap(bare)(x)


def test_autocast(bare: Operation, make: Make, x: torch.Tensor) -> None:
    product = make(plans.TWICE, reference=lambda x: x.double().float() @ torch.eye(6))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert bare(x).dtype is torch.float32
        with pytest.warns(ReferenceUsed):
            assert product(x.t().contiguous().t()).dtype is torch.float32


# -- compiled and exported --


@pytest.mark.parametrize("dynamic", [False, True, None])
def test_compile(dynamic: bool | None, scale: Operation) -> None:
    graphs: list[str] = []
    function = compiled(lambda x: scale(x, factor=0.5, shift=1) + 1, graphs, dynamic=dynamic)
    for rows in (3, 4, 3, 7):
        x = torch.randn(rows, 6)
        close(function(x), x + 2)
    assert all("torch.ops.tilewright.scale_" in graph for graph in graphs)
    assert len(graphs) == {False: 3, True: 1, None: 2}[dynamic]


def test_compile_marked_dynamic(extremes: Operation) -> None:
    graphs: list[str] = []
    function = compiled(lambda x: extremes(x)[1] + 1, graphs)
    for rows, columns in ((3, 5), (4, 6), (9, 5)):
        x = torch.randn(rows, columns)
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(x, 1)
        close(function(x), x.amax(1) + 1)
    assert len(graphs) == 1


def test_compile_in_place(accumulate: Operation, x: torch.Tensor) -> None:
    def function(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        accumulate(y, x)
        z = y + 0
        accumulate(z, x)
        return z

    y = x.clone()
    torch._dynamo.reset()
    close(torch.compile(function, backend="aot_eager", fullgraph=True)(y, x), 3 * x)
    close(y, 2 * x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_in_place_with_shared_memory(accumulate: Operation, x: torch.Tensor, dynamic: bool) -> None:
    def function(y: torch.Tensor) -> None:
        accumulate(y, y)

    def of_halves(y: torch.Tensor) -> None:
        accumulate(y[: len(y) // 2], y[len(y) // 2 :])

    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"shares memory with x; pass x\.clone\(\)"):
        torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)(x)
    before = x.clone()
    torch.compile(of_halves, backend="aot_eager", fullgraph=True, dynamic=dynamic)(x)
    close(x[:2], before[:2] + before[2:])


def test_compile_with_gradients(cube: Operation) -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x: (cube(x) * 2).sum(), backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 6, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReferenceUsed)
            function(x).backward()
        close(x.grad, 6 * x.detach() ** 2)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", ["cube", "extremes", "transposed", "accumulate"])
def test_opcheck(name: str, transposed: bool, make: Make, x: torch.Tensor) -> None:
    given = x.t() if transposed else x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceUsed)
        match name:
            case "cube":
                operation, values = make(CUBE, reference=plans.cube_reference), (given.clone().requires_grad_(),)
            case "extremes":
                operation, values = make(plans.TWO_RESULTS, reference=extremes_reference), (given,)
            case "transposed":
                operation, values = make(plans.TRANSPOSED, reference=torch.clone), (given,)
            case _:
                operation, values = make(plans.IN_PLACE), (given.clone(), given)
        torch.library.opcheck(operation.torch_op, values)


class Cubes(torch.nn.Module):
    def __init__(self, cube: Operation) -> None:
        super().__init__()
        self.cube = cube

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cube(x * 2) + 1


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_export(strict: bool, dynamic: bool, cube: Operation, x: torch.Tensor) -> None:
    torch._dynamo.reset()
    shapes = {"x": {0: torch.export.Dim("rows"), 1: torch.export.Dim("columns")}} if dynamic else None
    exported = torch.export.export(Cubes(cube), (x,), dynamic_shapes=shapes, strict=strict)
    targets = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert str(cube.torch_op) in targets
    assert not any("empty" in target for target in targets)
    other = torch.randn(7, 3) if dynamic else x + 1
    close(exported.module()(other), (2 * other) ** 3 + 1)


def test_make_fx_and_jit_trace(cube: Operation, x: torch.Tensor) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    for before_dispatch in (False, True):
        graph = make_fx(lambda x: cube(x), pre_dispatch=before_dispatch)(x)
        assert cube.torch_op.name().split("::")[1] in graph.code
        close(graph(x + 1), (x + 1) ** 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(lambda x: cube(x), (x,))
        assert cube.torch_op.name() in str(traced.graph)
        close(traced(x + 1), (x + 1) ** 3)


def test_jit_script(cube: Operation, x: torch.Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(CallRefused, match=r"torch\.jit\.script cannot read a kernel file; use torch\.jit\.trace"):
            torch.jit.script(cube)


# -- elsewhere --

ELSEWHERE = """
import pickle, sys, torch, warnings
from tilewright import load
folder = sys.argv[1]
x, expected = torch.load(folder + "/x.pt")
try:
    torch.export.load(folder + "/model.pt2")
except RuntimeError:
    print("not loaded")
operation = pickle.load(open(folder + "/operation.pickle", "rb"))
torch.testing.assert_close(operation(x), x**3)
bare = load(folder + "/k0.cu")
program = torch.export.load(folder + "/model.pt2")
torch.testing.assert_close(program.module()(x), expected)
torch.testing.assert_close(program.module()(x[:3]), expected[:3])
print("equal")
"""


def test_exported_and_pickled_for_another_process(cube: Operation, x: torch.Tensor, tmp_path: Path) -> None:
    module = Cubes(cube)
    exported = torch.export.export(module, (x,), dynamic_shapes={"x": {0: torch.export.Dim("rows")}})
    torch.export.save(exported, tmp_path / "model.pt2")
    torch.save((x, module(x)), tmp_path / "x.pt")
    (tmp_path / "operation.pickle").write_bytes(pickle.dumps(cube))
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", textwrap.dedent(ELSEWHERE), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["not loaded", "equal"]
    assert re.search(r"load the file of op cube whose digest begins with [0-9a-f]{10} first", done.stderr)


def test_copies_and_pickles(cube: Operation, x: torch.Tensor, tmp_path: Path) -> None:
    assert copy.deepcopy(cube) is cube
    assert copy.deepcopy(Cubes(cube)).cube is cube
    dumped = pickle.dumps(cube)
    close(pickle.loads(dumped)(x), x**3)
    (tmp_path / "k0.cu").write_text(CUBE + "\n")
    with pytest.raises(LoadError, match=r"k0\.cu is not the file it was when the operation was pickled"):
        pickle.loads(dumped)


TOGETHER = """
import sys, torch, torch.distributed as dist, warnings
import tilewright
warnings.simplefilter("ignore")
folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + folder + "/meeting", rank=rank, world_size=2)
cube = tilewright.load(folder + "/k0.cu", reference=lambda x: x * x * x)
torch.manual_seed(0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
    def forward(self, x):
        return cube(self.linear(x))
model = torch.nn.parallel.DistributedDataParallel(Model())
x = torch.full((2, 6), float(rank + 1))
model(x).sum().backward()
alone = Model()
alone.load_state_dict(model.module.state_dict())
want = []
for number in (1.0, 2.0):
    y = alone.linear(torch.full((2, 6), number))
    want.append(torch.autograd.grad((y * y * y).sum(), alone.linear.weight)[0])
torch.testing.assert_close(model.module.linear.weight.grad, (want[0] + want[1]) / 2)
"""


@pytest.mark.slow
def test_distributed_data_parallel(cube: Operation, tmp_path: Path) -> None:
    command = [sys.executable, "-c", TOGETHER, str(tmp_path)]
    both = [subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
    for one in both:
        _, errors = one.communicate(timeout=900)
        assert one.returncode == 0, errors


# -- the page --


def test_the_page_has_a_row_for_each() -> None:
    named = re.findall(r"^\|.*`(test_\w+)`", PAGE.read_text(), re.MULTILINE)
    here = [name for name in globals() if name.startswith("test_") and name != "test_the_page_has_a_row_for_each"]
    assert sorted(set(named)) == sorted(here)
