"""What is known of registers, on PTX written by hand."""

from __future__ import annotations

import numpy as np

from tilewright.lint.register_values import BlockPlace, RegisterValues, evaluate_registers
from tilewright.lint.thread_values import Known, Varying
from tilewright.ptx.control_flow import flow
from tilewright.ptx.parser import parse_ptx

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def values_of(body: str, *, threads: int = 64, cols: int = 40000, block: int = 69999) -> RegisterValues:
    registers = ".reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %rd<8>; .reg .f32 %f<4>;"
    text = f"{HEAD}.visible .entry k(.param .u64 x, .param .u32 cols)\n{{\n{registers}\n{body}\nret;\n}}\n"
    function = parse_ptx(text).functions["k"]
    place = BlockPlace(
        block=(threads, 1, 1),
        grid=(70000, 1, 1),
        index=(block, 0, 0),
        shared=frozenset(),
        numbers={("cols", 0): cols.to_bytes(4, "little")},
        tensors={("x", 0): "x"},
    )
    return evaluate_registers(function, flow(function), place)


def known(values: RegisterValues, name: str) -> Known:
    value = values.settled[name]
    assert isinstance(value, Known)
    return value


def test_a_thread_number_goes_through_arithmetic_exactly() -> None:
    values = values_of("mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 7; shr.u32 %r3, %r1, 3; mad.lo.s32 %r4, %r3, 10, %r2;")
    thread = np.arange(64)
    assert (known(values, "%r4").values == thread // 8 * 10 + thread % 8).all()
    assert known(values, "%r4").anchored


def test_a_counter_is_known_up_to_a_shared_number() -> None:
    values = values_of(
        "ld.param.u64 %rd1, [x]; mov.u32 %r1, %tid.x;\n"
        "LOOP: mul.wide.s32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; ld.global.f32 %f1, [%rd3];\n"
        "add.s32 %r1, %r1, 64; setp.lt.s32 %p1, %r1, 640; @%p1 bra LOOP;"
    )
    address = known(values, "%rd3")
    assert not address.anchored
    assert address.origin is not None
    assert address.origin.name == "x"
    assert (np.diff(address.values) == 4).all()


def test_what_threads_write_on_different_ways_is_not_taken_for_shared() -> None:
    values = values_of(
        "mov.u32 %r1, %tid.x; mov.u32 %r2, 1; setp.lt.u32 %p1, %r1, 16; @%p1 bra NEXT; mov.u32 %r2, 2;\n"
        "NEXT: add.s32 %r3, %r2, 0;"
    )
    assert values.settled["%r3"] is Varying.BY_THREAD


def test_a_uniform_way_leaves_a_number_that_all_share() -> None:
    values = values_of(
        "ld.param.u32 %r1, [cols]; mov.u32 %r2, 1; ld.param.u64 %rd1, [x]; ld.global.u32 %r4, [%rd1];\n"
        "setp.lt.u32 %p1, %r4, 16; @%p1 bra NEXT; mov.u32 %r2, 2;\n"
        "NEXT: add.s32 %r3, %r2, 0;"
    )
    assert known(values, "%r3").is_uniform
    assert not known(values, "%r3").anchored


def test_a_product_beyond_32_bits_is_noted_where_it_is_widened() -> None:
    body = "mov.u32 %r1, %ctaid.x; ld.param.u32 %r2, [cols]; mul.lo.s32 %r3, %r1, %r2; mul.wide.s32 %rd1, %r3, 4;"
    assert known(values_of(body), "%rd1").wrapped == 3
    assert known(values_of(body.replace("wide.s32", "wide.u32")), "%rd1").wrapped is None  # 2.8e9 fits there
    assert known(values_of(body, cols=20000), "%rd1").wrapped is None
