"""What `flatten` puts into a kernel file: just what it uses, in one order, once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.device_library.components import KERNELS, flat_text
from tests.frontends.in_process import tilewright

from tilewright.device_library import UnknownHeader, flatten, library
from tilewright.kernel_file import KernelFileError, parse

SUM = """\
//! op total(x) -> y
//! out y: f32[1]
//! launch total<<<1, 64>>>(x, y)
#include <tilewright/reduce.cuh>
#include <cuda_fp16.h>

__global__ void total(const float* x, float* y) {
  __shared__ float partial[2];
  const float sum = tw::team_reduce<64>(x[threadIdx.x], tw::Sum{}, partial);
  if (threadIdx.x == 0) y[0] = sum;
}
"""


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.cu")), ids=lambda path: path.stem)
def test_a_flat_file_stands_alone_and_stays_as_it_is(path: Path) -> None:
    text = flat_text(path.stem)
    assert "<tilewright/" not in text
    assert flatten(text) == text
    parse(text)


def test_only_what_is_reached_is_there() -> None:
    flat = flatten(SUM)
    names = ("Sum", "shuffle_xor", "warp_reduce", "team_reduce")
    assert all(re.search(rf"\b{name}\b", flat) for name in names)
    absent = {one.name for header in library().values() for one in header.definitions} - {*names}
    assert {name for name in absent if re.search(rf"\b{name}\b", flat)} == set()
    assert flat.count("namespace tw {") == 1
    assert "cost:" not in flat
    assert "arch:" not in flat


def test_the_order_is_the_library_s_and_not_that_of_the_includes() -> None:
    both = "#include <tilewright/reduce.cuh>\n#include <tilewright/moments.cuh>\n"
    text = SUM.replace("#include <tilewright/reduce.cuh>\n", both).replace("x[threadIdx.x]", "tw::moments_of(v).mean")
    turned = text.replace(both, "\n".join(reversed(both.splitlines())) + "\n")
    assert flatten(text) == flatten(turned)
    assert flatten(text).index("struct Moments") < flatten(text).index("struct Sum")


def test_what_a_namespace_s_users_write_without_it_counts() -> None:
    opened = SUM.replace("__global__", "using namespace tw;\n__global__").replace("tw::", "")
    assert "struct Sum" in flatten(opened)
    assert flatten(SUM.replace("tw::Sum", "Sum")).count("struct Sum") == 0


def test_a_comment_or_a_string_is_no_use() -> None:
    assert "struct ArgMax" not in flatten(SUM + "// tw::ArgMax\n")


def test_an_unknown_header_is_refused_by_name() -> None:
    with pytest.raises(UnknownHeader, match=r"no <tilewright/reduces.cuh>; it has attention_tiles.cuh, "):
        flatten("#include <tilewright/reduces.cuh>\n")


def test_what_is_not_flat_is_no_kernel_file() -> None:
    with pytest.raises(KernelFileError, match="tilewright flatten"):
        parse(SUM)


def test_the_command_writes_the_flat_file_or_says_what_is_wrong(tmp_path: Path) -> None:
    source, kernel = tmp_path / "source.cu", tmp_path / "kernel.cu"
    source.write_text(SUM)
    assert tilewright(tmp_path, "flatten", source, "-o", kernel).returncode == 0
    assert kernel.read_text() == flatten(SUM) == tilewright(tmp_path, "flatten", source).stdout
    source.write_text(SUM.replace("reduce.cuh", "none.cuh"))
    refused = tilewright(tmp_path, "flatten", source)
    assert refused.returncode == 2
    assert "no <tilewright/none.cuh>" in refused.stderr
