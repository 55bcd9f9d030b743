"""How much lies behind plain pointers, seen in the emulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.devices.child_device import EmulatedDevice
from tilewright.frontends.cli.judging import reach
from tilewright.importing.calls import CallArgument
from tilewright.importing.shapes import Extent, extents, ordered_sizes
from tilewright.kernel_file import parse
from tilewright.records import PROFILES

GPU = PROFILES["H200"]
KERNEL = """\
//! op      scale(y!, x, w, unused, N: int, C: int)
//! launch  run<<<N, 64>>>(y, x, w, unused, C)
__global__ void run(float* y, const float* x, const float* w, const float* unused, int C) {
  for (int c = threadIdx.x; c < C; c += 64) y[blockIdx.x * C + c] = x[3 * (blockIdx.x * C + c) + 2] * w[c];
}
"""


def tensor(name: str) -> CallArgument:
    return CallArgument(name, "tensor", "f32", (1 << 17,), is_pointer=True)


CALL = (*map(tensor, ("y", "x", "w", "unused")), CallArgument("N", "int", value=64), CallArgument("C", "int", value=96))


def test_extents_are_products_of_the_numbers() -> None:
    with EmulatedDevice(GPU) as emulator:
        found, unknown = extents(parse(KERNEL, "k.cu"), CALL, GPU, reach(emulator))
    assert found == {"y": Extent(1, ("N", "C")), "x": Extent(3, ("N", "C")), "w": Extent(1, ("C",))}
    assert unknown == frozenset()  # what nothing touches may be as long as it likes


@pytest.mark.slow
def test_vectors_and_small_numbers() -> None:
    text = """\
//! op      scale(y!, x, B: int, C: int)
//! launch  run<<<B, C / 4>>>(y, x, C / 4)
__global__ void run(float4* y, const float4* x, int quads) {
  int i = blockIdx.x * quads + threadIdx.x;
  for (int part = 0; part < 3; ++part) y[3 * i + part] = x[i];
}
"""
    call = (tensor("y"), tensor("x"), CallArgument("B", "int", value=3), CallArgument("C", "int", value=96))
    with EmulatedDevice(GPU) as emulator:
        found, _ = extents(parse(text, "k.cu"), call, GPU, reach(emulator))
    assert found == {"y": Extent(3, ("B", "C")), "x": Extent(1, ("B", "C"))}  # not B * B * C, though B is 3


@pytest.mark.slow
def test_what_is_no_product_is_not_known() -> None:
    with EmulatedDevice(GPU) as emulator:
        odd = parse(KERNEL.replace("* w[c]", "* w[c + 1]"), "k.cu")
        assert extents(odd, CALL, GPU, reach(emulator))[1] == {"w"}
        indices = parse(KERNEL.replace("const float* w", "const int* w").replace("* w[c]", "+ x[w[c] * C]"), "k.cu")
        call = [replace(one, dtype="i32") if one.name == "w" else one for one in CALL]
        found, unknown = extents(indices, call, GPU, reach(emulator))
        assert found["w"] == Extent(1, ("C",))
        assert unknown == frozenset()  # a row that an index names is one of those that are read anyway
        table = parse(indices.text.replace("x[w[c] * C]", "unused[w[c] * C + c]"), "k.cu")
        assert extents(table, call, GPU, reach(emulator))[1] == {"unused"}


def test_a_size_that_an_index_is_multiplied_by_lies_further_in() -> None:
    product = Extent(1, ("M", "N", "K"))
    aliases = {"b": "right", "n": "N", "": "M"}
    assert ordered_sizes(product, "right", "sum += b[k * n + col];", aliases) == ["M", "K", "N"]
    assert ordered_sizes(Extent(3, ("N", "C")), "x", "x[3 * (i * C + c)]", {"x": "x"}) == ["N", "C * 3"]
    macro = "b[OFFSET(i, j, n)] = 0;"
    assert ordered_sizes(Extent(1, ("N", "K")), "right", macro, aliases) == ["K", "N"]
    stride = "int C3 = C * 3; y[b * T * C3 + t * C3] = 0;"
    assert ordered_sizes(Extent(3, ("B", "T", "C")), "y", stride, {"y": "y"}) == ["B", "T", "C * 3"]
