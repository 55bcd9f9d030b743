"""Blocks, post-dominators and meeting points: small functions by hand, random graphs against the definition."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ptx.control_flow import ControlFlow, flow, immediate_post_dominators
from tilewright.ptx.parser import parse_ptx
from tilewright.ptx.syntax import Function, PtxError

SAMPLES = Path(__file__).parent / "samples"


def function(body: str) -> Function:
    text = f""".version 9.0
        .target sm_80
        .address_size 64
        .func k() {{ .reg .pred %p<9>; .reg .b32 %r<9>; {body} }}"""
    return parse_ptx(text).functions["k"]


def meetings(body: str) -> dict[int, int | None]:
    return flow(function(body)).reconvergence


def blocks(found: ControlFlow) -> list[tuple[int, int, tuple[int, ...], bool]]:
    return [(block.start, block.end, block.successors, block.leaves) for block in found.blocks]


# Instruction indices are in the comments.
IF_ELSE = """
    @%p1 bra ELSE;          // 0
    mov.u32 %r1, 1;         // 1
    bra JOIN;               // 2
    ELSE: mov.u32 %r1, 2;   // 3
    JOIN: ret;              // 4
"""


def test_if_else_meets_behind_both() -> None:
    found = flow(function(IF_ELSE))
    assert blocks(found) == [(0, 1, (1, 2), False), (1, 3, (3,), False), (3, 4, (3,), False), (4, 5, (), True)]
    assert found.post_dominators == (3, 3, 3, None)
    assert found.reconvergence == {0: 4}


def test_layout_does_not_matter() -> None:
    moved = """
        @%p1 bra ELSE;          // 0
        bra THEN;               // 1
        JOIN: ret;              // 2
        ELSE: mov.u32 %r1, 2;   // 3
        bra JOIN;               // 4
        THEN: mov.u32 %r1, 1;   // 5
        bra JOIN;               // 6
    """
    assert meetings(moved) == {0: 2}


def test_a_loop_is_left_at_its_end() -> None:
    found = flow(function("LOOP: mov.u32 %r1, 1; @%p1 bra LOOP; ret;"))
    assert found.reconvergence == {1: 2}
    assert 0 in found.blocks[0].successors


def test_a_break_meets_behind_the_loop() -> None:
    body = """
        HEAD: mov.u32 %r1, 1;   // 0
        @%p1 bra OUT;           // 1
        mov.u32 %r2, 2;         // 2
        @%p2 bra HEAD;          // 3
        mov.u32 %r3, 3;         // 4
        OUT: ret;               // 5
    """
    assert meetings(body) == {1: 5, 3: 5}


def test_an_early_return_is_not_waited_for() -> None:
    body = """
        @%p1 bra SKIP;          // 0
        mov.u32 %r1, 1;         // 1
        @%p2 ret;               // 2
        mov.u32 %r2, 1;         // 3
        SKIP: mov.u32 %r3, 1;   // 4
        @%p3 exit;              // 5
        ret;                    // 6
    """
    assert meetings(body) == {0: 4}


def test_one_of_two_returns_is_the_main_one() -> None:
    body = """
        @%p1 bra SKIP;          // 0
        @%p2 bra EXIT;          // 1
        mov.u32 %r1, 1;         // 2
        SKIP: @%p3 bra LAST;    // 3
        mov.u32 %r2, 1;         // 4
        LAST: ret;              // 5
        EXIT: exit;             // 6
    """
    found = flow(function(body))
    assert found.reconvergence == {0: 3, 1: 2, 3: 5}
    assert [block.leaves for block in found.blocks][-2:] == [True, True]
    assert meetings("@%p1 bra B; ret; B: ret;") == {0: 2}


def test_a_trap_is_not_waited_for() -> None:
    body = """
        @%p1 bra BAD;           // 0
        bra GOOD;               // 1
        BAD: trap;              // 2
        GOOD: mov.u32 %r1, 1;   // 3
        ret;                    // 4
    """
    found = flow(function(body))
    assert found.reconvergence == {0: 1}
    assert [way for block, way in zip(found.blocks, found.post_dominators, strict=True) if block.start == 2] == [None]


def test_an_indexed_branch() -> None:
    body = """
        table: .branchtargets A, B, C, A;
        brx.idx %r1, table;     // 0
        A: mov.u32 %r1, 1;      // 1
        B: mov.u32 %r1, 2;      // 2
        bra OUT;                // 3
        C: mov.u32 %r1, 3;      // 4
        OUT: ret;               // 5
    """
    found = flow(function(body))
    assert found.blocks[0].successors == (1, 2, 3)
    assert found.reconvergence == {0: 5}


def test_running_off_the_end_leaves() -> None:
    found = flow(function("@%p1 bra END; mov.u32 %r1, 1; END:"))
    assert blocks(found) == [(0, 1, (1,), True), (1, 2, (), True)]
    assert found.reconvergence == {0: 1}


def test_an_endless_loop_still_meets_inside() -> None:
    body = """
        HEAD: mov.u32 %r1, 1;   // 0
        @%p1 bra OTHER;         // 1
        mov.u32 %r1, 2;         // 2
        bra JOIN;               // 3
        OTHER: mov.u32 %r1, 3;  // 4
        JOIN: @%p2 ret;         // 5
        bra HEAD;               // 6
    """
    found = flow(function(body))
    assert found.reconvergence == {1: 5}
    assert found.blocks[-1].successors == (0,)


def test_threads_that_never_return_do_not_move_the_others_meeting() -> None:
    body = """
        @%p1 bra FOREVER;       // 0
        @%p2 bra JOIN;          // 1
        mov.u32 %r1, 1;         // 2
        JOIN: ret;              // 3
        FOREVER: @%p3 bra ON;   // 4
        mov.u32 %r1, 2;         // 5
        ON: bra FOREVER;        // 6
    """
    assert meetings(body) == {0: 1, 1: 3, 4: 6}


def test_a_loop_with_two_ways_in() -> None:
    body = """
        @%p1 bra B;             // 0
        A: mov.u32 %r1, 1;      // 1
        @%p2 bra OUT;           // 2
        B: mov.u32 %r1, 2;      // 3
        bra A;                  // 4
        OUT: ret;               // 5
    """
    assert meetings(body) == {0: 1, 2: 5}


def test_code_nobody_reaches_changes_nothing() -> None:
    body = """
        @%p1 bra B;             // 0
        bra C;                  // 1
        @%p2 bra C;             // 2, unreachable
        B: mov.u32 %r1, 1;      // 3
        C: ret;                 // 4
    """
    assert meetings(body) == {0: 4, 2: 4}


def test_a_function_without_instructions() -> None:
    assert flow(function("")) == ControlFlow((), (), {}, {})


@pytest.mark.parametrize("body", ["bra k;", "brx.idx %r1, k;", "bra %r1;", "bra;"])
def test_branches_to_nowhere(body: str) -> None:
    with pytest.raises(PtxError, match="branch needs"):
        flow(function(body))


def test_a_real_kernel() -> None:
    found = parse_ptx((SAMPLES / "row_sum_sm80.ptx").read_text()).functions["row_sum"]
    meet = {
        found.body[branch].text: found.body[meeting].text
        for branch, meeting in flow(found).reconvergence.items()
        if meeting is not None
    }
    assert meet == {
        "@%p1 bra $L__BB0_3": "mov.b32 %r8, %f25",
        "@%p2 bra $L__BB0_2": "mov.b32 %r8, %f25",
        "@%p8 bra $L__BB0_5": "bar.sync 0",
        "@%p9 bra $L__BB0_7": "ret",
    }


# -- against the definition --


def reaches_exit(successors: list[list[int]], leaves: list[bool], start: int, without: int | None = None) -> bool:
    """Is there a path from `start` to the exit that does not touch `without`?"""
    if start == without:
        return False
    seen, pending = {start}, [start]
    while pending:
        block = pending.pop()
        if leaves[block]:
            return True
        for following in successors[block]:
            if following not in seen and following != without:
                seen.add(following)
                pending.append(following)
    return False


def by_definition(successors: list[list[int]], leaves: list[bool]) -> list[int | None]:
    """The post-dominator of each block that all its other post-dominators post-dominate; None for the exit."""
    count = len(successors)
    dominators = [
        {other for other in range(count) if other != block and not reaches_exit(successors, leaves, block, other)}
        for block in range(count)
    ]
    immediate: list[int | None] = []
    for block in range(count):
        ahead = dominators[block]
        nearest = [each for each in ahead if all(other == each or other in dominators[each] for other in ahead)]
        immediate.append(nearest[0] if nearest else None)
    return immediate


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[list[int]], list[bool]]:
    count = draw(st.integers(1, 12))
    successors = draw(
        st.lists(st.lists(st.integers(0, count - 1), max_size=3, unique=True), min_size=count, max_size=count)
    )
    leaves = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return successors, leaves


@settings(deadline=None)
@given(graphs())
def test_random_graphs_against_the_definition(graph: tuple[list[list[int]], list[bool]]) -> None:
    successors, leaves = graph
    found = immediate_post_dominators(successors, leaves)
    expected = by_definition(successors, leaves)
    for block in range(len(successors)):
        if reaches_exit(successors, leaves, block):
            assert found[block] == expected[block], block
        else:
            # No path ends: any meeting point will do that is ahead, and that does not end either.
            meeting = found[block]
            assert meeting != block
            assert meeting is None or not reaches_exit(successors, leaves, meeting)


def test_large_functions_are_quick() -> None:
    chooser = random.Random(5)
    lines = [
        f"L{i}: @%p{i % 9} bra L{max(0, min(6999, i + chooser.randint(-30, 60)))}; add.s32 %r1, %r1, 1;"
        for i in range(7000)
    ]
    large = function("\n".join(lines) + "ret;")
    started = time.process_time()
    found = flow(large)
    assert time.process_time() - started < 20.0
    assert len(found.reconvergence) == 7000


def test_a_thousand_nested_loops() -> None:
    count = 1000
    heads = "".join(f"L{i}: add.s32 %r1, %r1, {i};\n" for i in range(count))
    tails = "".join(f"@%p1 bra L{i};\n" for i in reversed(range(count)))
    found = flow(function(heads + tails + "ret;"))
    assert found.reconvergence == {count + i: count + i + 1 for i in range(count)}
