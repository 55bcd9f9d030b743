"""The exported torch package: an operator on CPU, and its launch path under a driver that only writes down."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from tests.exports.small_op import REFERENCE

from tilewright.exports import python_op
from tilewright.exports.source import Source
from tilewright.exports.verification import sizes_text
from tilewright.exports.writing import RECORD, render_template
from tilewright.kernel_file import parse
from tilewright.records import Dimension, DType, Part, Task, TaskOutput, TensorInput, TensorSpec, UniformValues


def arguments(rows: int = 6, cols: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, cols, generator=generator), torch.randn(cols, generator=generator)


def truth(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def test_runs_its_reference_on_the_cpu(package: ModuleType) -> None:
    x, weight = arguments()
    y, norm = package.row_scale(x, weight)
    assert torch.equal(y, truth(x, weight))
    assert norm.shape == (6,)


@pytest.mark.slow
def test_is_a_sound_operator(package: ModuleType) -> None:
    x, weight = arguments()
    operator = torch.ops.tilewright_exported_row_scale.row_scale.default
    answers = torch.library.opcheck(
        operator,
        (x.requires_grad_(), weight),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    assert set(answers.values()) == {"SUCCESS"}


def test_gradients_are_the_references_and_it_says_so_once(package: ModuleType) -> None:
    x, weight = (one.requires_grad_() for one in arguments())
    with pytest.warns(RuntimeWarning, match="its gradient is the reference's"):
        package.row_scale(x, weight)[0].square().sum().backward()
    found = x.grad, weight.grad
    x.grad = weight.grad = None
    truth(x, weight).square().sum().backward()
    assert all(torch.allclose(one, other) for one, other in zip(found, (x.grad, weight.grad), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        package.row_scale(x, weight)[0].sum().backward()


def test_shapes_are_known_without_content(package: ModuleType) -> None:
    y, norm = torch.ops.tilewright_exported_row_scale.row_scale(
        torch.empty(2, 3, 8, device="meta"), torch.empty(8, device="meta")
    )
    assert (y.shape, norm.shape, norm.dtype) == ((2, 3, 8), (6,), torch.float32)


@pytest.mark.slow
def test_compiles_whole_with_static_and_dynamic_sizes(package: ModuleType) -> None:
    def work(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = package.row_scale(x.relu(), weight)[0].sin()
        return found

    for dynamic in (False, True):
        compiled = torch.compile(work, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        for rows in (6, 9):
            assert torch.allclose(compiled(*arguments(rows)), work(*arguments(rows)), atol=1e-6)


@pytest.mark.slow
def test_is_exported_and_read_back(package: ModuleType, tmp_path: Path) -> None:
    class Scale(torch.nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            found: tuple[torch.Tensor, torch.Tensor] = package.row_scale(x, weight)
            return found

    rows = torch.export.Dim("rows")
    program = torch.export.export(Scale(), arguments(), dynamic_shapes=({0: rows}, None))
    torch.export.save(program, tmp_path / "scale.pt2")
    again = torch.export.load(tmp_path / "scale.pt2").module()
    x, weight = arguments(11)
    assert torch.equal(again(x, weight)[0], truth(x, weight))


@pytest.mark.slow
def test_the_package_knows_nothing_of_tilewright(torch_folder: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(torch_folder)!r}); import exported_row_scale; "
    program += "print([name for name in sys.modules if name.startswith('tilewright')])"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_written_is_on_record(torch_folder: Path, small_source: Source) -> None:
    record = json.loads((torch_folder / RECORD).read_text())
    assert record["standing"] == "unjudged"
    assert record["kernels"] == {"row_scale.cu": small_source.files[0].identity}
    assert set(record["files"]) == {p.relative_to(torch_folder).as_posix() for p in torch_folder.rglob("*")
                                    if p.is_file() and "__pycache__" not in p.parts} - {RECORD}  # fmt: skip
    assert "not verified" in (torch_folder / "README.md").read_text()


def test_what_is_said_of_sizes_is_what_its_files_take_together(small_source: Source) -> None:
    task = Task(
        "row_scale",
        REFERENCE,
        "row_scale",
        (TensorInput("x", DType.F32, ("rows", "cols")), TensorInput("weight", DType.F32, ("cols",))),
        (TaskOutput("y", DType.F32, ("rows", "cols")),),
        (Dimension("rows", 64), Dimension("cols", 256)),
    )
    wide = small_source.files[0]
    said = "Of the requested sizes the kernel takes only cols a multiple of"
    assert sizes_text(replace(small_source, task=task)) == f"{said} 4"
    narrow = parse(wide.text.replace("//! out ", "//! need    x.shape[1] % 8 == 0\n//! out ", 1), "narrow.cu")
    alone = replace(small_source, task=task, files=(narrow,))
    assert sizes_text(alone) == f"{said} 8"
    assert sizes_text(replace(alone, files=(narrow, wide))) == f"{said} 4"  # the second takes what the first declines
    values = {"package": "p", "sizes_taken": sizes_text(alone), "has_reference": True}
    values |= {"doc": "", "arguments": "", "public": "", "backward": None, "judged": "", "measured": "", "licence": ""}
    readme = render_template("package/README.md", version="", archs="", has_ptx=False, sets=1, left_out=0,
                      differentiable=False, **values)  # fmt: skip
    assert "takes only cols a multiple of 8; other calls run the reference." in readme


# -- the launch path, with tensors and a driver that are none --


class StubTensor:
    """What the launch path asks of a CUDA tensor."""

    made: ClassVar[list[StubTensor]] = []

    def __init__(
        self, *shape: int, dtype: torch.dtype = torch.float32, address: int = 0x10000, device: int = 0
    ) -> None:
        self.like = torch.empty(shape, dtype=dtype, device="meta")
        self.shape, self.dtype, self.requires_grad = self.like.shape, dtype, False
        self.address, self.device_index = address, device

    def stride(self) -> tuple[int, ...]:
        return self.like.stride()

    def data_ptr(self) -> int:
        return self.address

    def get_device(self) -> int:
        return self.device_index

    def is_neg(self) -> bool:
        return False

    def new_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> StubTensor:
        StubTensor.made.append(StubTensor(*shape, dtype=dtype, address=0x100000 * (len(StubTensor.made) + 1)))
        return StubTensor.made[-1]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("driver") / "libstub.so"
    source = Path(__file__).parent / "stub_driver.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture
def native(package: ModuleType, driver: ctypes.CDLL) -> Iterator[Any]:
    native = package._op._native
    names = native.driver_names()
    native.open_driver({name: ctypes.cast(getattr(driver, name), ctypes.c_void_p).value for name in names})
    dtypes = tuple(getattr(torch, one.torch_name) for one in DType)
    stream, changed = (lambda index: 0x5), (lambda tensor: None)
    native.setup((StubTensor,), dtypes, stream, lambda: False, (), package._op._image, changed)
    StubTensor.made.clear()
    driver.take_log.restype = ctypes.c_char_p
    driver.take_log()
    yield native
    package._op._setup()


def logged(driver: ctypes.CDLL) -> list[str]:
    text: bytes = driver.take_log()
    return text.decode().splitlines()


def test_launches_what_the_plan_says(native: Any, driver: ctypes.CDLL) -> None:
    x, weight = StubTensor(64, 256), StubTensor(256, address=0x20000)
    y, norm = native.call(x, weight, None, 1e-6)
    assert (tuple(y.shape), tuple(norm.shape)) == ((64, 256), (64,))
    native.call(x, weight, None, 1e-6)
    lines = logged(driver)[-5:]
    assert lines == [
        "context 0x100",
        "clear 600000 0 256 0x5",  # the second call's scratch: two results of each call lie before it
        "launch 64,1,1 128,1,1 0 0x5 0 10000",
        "launch 64,1,1 128,1,1 16 0x5 0 10000",
        "context 0x77",
    ]


def test_what_is_not_its_own_goes_the_long_way(native: Any, driver: ctypes.CDLL) -> None:
    weight = StubTensor(256)
    assert native.call(torch.empty(64, 256), weight, None, 1e-6) is NotImplemented  # another kind of tensor
    assert native.call(StubTensor(64, 256, device=-1), weight, None, 1e-6) is NotImplemented  # a CPU tensor
    assert native.call(StubTensor(64, 252), StubTensor(252), None, 1e-6) is NotImplemented  # no such build
    assert native.call(StubTensor(64, 256), weight, None, "much") is NotImplemented  # the operator says what is wrong
    assert not any(line.startswith("launch") for line in logged(driver))


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (StubTensor(64, 254), "row_scale.cu:5: `cols % 4 == 0` is false"),
        (StubTensor(64, 252), "no build was exported for THREADS = 128, QUADS = 63, MASKED = 0"),
        (StubTensor(64, 256, dtype=torch.float16), "`x.dtype == f32` is false"),
        (StubTensor(64, 256, address=0x10004), "x is not aligned to 16 bytes"),
        (StubTensor(64, 256, dtype=torch.complex64), "a dtype that no kernel takes"),
    ],
)
def test_a_refusal_says_why(native: Any, x: StubTensor, reason: str) -> None:
    with pytest.raises(native.Refused) as refusal:
        native.launch(x, StubTensor(x.shape[1]), None, 1e-6)
    assert reason in str(refusal.value)


def test_errors_of_the_driver_and_of_numbers_are_said(native: Any, driver: ctypes.CDLL) -> None:
    failing = ctypes.c_int.in_dll(driver, "failing_launches")
    failing.value = 1
    with pytest.raises(RuntimeError, match=r"CUDA_ERROR_OF_THE_STUB \(700\): launch sum_rows<false>"):
        native.call(StubTensor(64, 256), StubTensor(256), None, 1e-6)
    with pytest.raises(RuntimeError, match="beyond the range of a float"):
        native.call(StubTensor(64, 256), StubTensor(256), None, 1e300)
    with pytest.raises(RuntimeError, match="another device"):
        native.launch(StubTensor(64, 256), StubTensor(256, device=1), None, 1e-6)
    with pytest.raises(TypeError, match="takes 4 arguments"):
        native.call(StubTensor(64, 256))


def test_a_changed_module_is_not_loaded(
    native: Any, package: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _ = package._op._IMAGES[0]["cubins"]["sm_90a"]
    (tmp_path / name).write_bytes(b"\x7fELF something else")
    monkeypatch.setattr(package._op, "_FOLDER", tmp_path)
    with pytest.raises(RuntimeError, match="not the file that was exported"):
        package._op._image(0, 90)
    with pytest.raises(RuntimeError, match="export again with --arch sm_75"):
        package._op._image(0, 75)


@pytest.mark.parametrize("part", [Part.UPPER, Part.LOWER])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F8E4M3])
def test_triangles_of_any_float_are_drawn(dtype: DType, part: Part) -> None:
    one = TensorInput("a", dtype, ("rows", "cols"), values=UniformValues(1.0, 2.0, part))
    text = python_op._tensor_text(TensorSpec.contiguous(dtype, (3, 4)), one, {})
    made = eval(text, {"torch": torch, "device": "cpu"}).float()
    kept = torch.ones(3, 4).triu() if part is Part.UPPER else torch.ones(3, 4).tril()
    assert torch.equal(made != 0, kept != 0)
