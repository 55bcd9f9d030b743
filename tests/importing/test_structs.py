"""Structs that kernels take by value, as fields."""

from __future__ import annotations

from tilewright.importing.recording import Launched
from tilewright.importing.signatures import fields, parameters
from tilewright.importing.sources import Kind, read_source
from tilewright.importing.wrappers import flat_names, with_wrappers, wrapper_kernels

TEXT = """
namespace deep {
struct Params { const float* __restrict__ x; float *y, *z; int n = 4; static int s; int half() { return n / 2; } };
template <class T> struct Pair { T a, b; };
struct Table { float at[4]; };
struct Derived : Params { int more; };
__global__ void run(const Params p, Pair<float> q, dim3 g, Table t, Derived d, float* plain) { plain[0] = p.x[0]; }
}
"""


def test_fields_of_parameters() -> None:
    source = read_source("k.cu", TEXT, None)
    (item,) = source.of_kind(Kind.KERNEL)
    found = [[(one.type_, one.name) for one in fields(source, part)] for part in parameters(item)]
    assert found[0] == [("const float *", "x"), ("float *", "y"), ("float *", "z"), ("int", "n")]
    assert found[1] == [("decltype(Pair < float >::a)", "a"), ("decltype(Pair < float >::b)", "b")]
    assert found[2] == [("unsigned", "x"), ("unsigned", "y"), ("unsigned", "z")]
    assert found[3:] == [[], [], []]  # an array, a base, and no struct


def test_an_entry_makes_the_struct_of_its_parameters() -> None:
    source = read_source("k.cu", TEXT.replace("Pair<float> q, dim3 g, Table t, Derived d, ", ""), None)
    (item,) = source.of_kind(Kind.KERNEL)
    assert flat_names(source, item) == ["p_x", "p_y", "p_z", "p_n", "plain"]
    text = with_wrappers(source.text, wrapper_kernels(source, [Launched(1, (1, 1, 1), (32, 1, 1), 0, "run")]))
    assert "__device__ __forceinline__ void run(const Params p" in text
    assert "run_as_launched(const float * p_x, float * p_y, float * p_z, int p_n, float* plain) {" in text
    assert "  p.n = p_n;\n  run(p, plain);\n}" in text
