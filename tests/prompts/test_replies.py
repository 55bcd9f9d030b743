"""Replies are read strictly, and what is wrong with one is said precisely."""

from __future__ import annotations

import contextlib
import random

import pytest
from tests.prompts.samples import KERNEL

from tilewright.prompts.replies import (
    MIDDLE_MARK,
    REPLACE_MARK,
    SEARCH_MARK,
    NoChange,
    ReplyProblem,
    read_no_change,
    read_reply,
)

BASE = "//! op f(x) -> y\n\nint a;\nint b;  \nint a;\nlast();\n"


def edit(search: str, replace: str) -> str:
    return f"{SEARCH_MARK}\n{search}\n{MIDDLE_MARK}\n{replace}\n{REPLACE_MARK}\n"


def problem(text: str, base: str | None = BASE) -> str:
    with pytest.raises(ReplyProblem) as caught:
        read_reply(text, base)
    return str(caught.value)


# -- whole files --


def test_a_whole_file_comes_back_as_it_was_sent() -> None:
    reply = read_reply(f"Some thoughts.\n\nSummary: one warp per row\n\n```cuda\n{KERNEL}```\n", None)
    assert reply.text == KERNEL
    assert reply.summary == "one warp per row"


@pytest.mark.parametrize("language", ["cuda", "cu", "cpp", "c++", "CUDA"])
def test_the_usual_names_of_the_language_are_taken(language: str) -> None:
    assert read_reply(f"Summary: s\n```{language}\n{KERNEL}```", None).text == KERNEL


def test_line_ends_and_blanks_at_line_ends_do_not_matter() -> None:
    text = f"Summary: s\n```cuda\n{KERNEL}```\n".replace("\n", "  \r\n")
    assert read_reply(text, None).text == KERNEL


def test_other_blocks_are_not_files() -> None:
    text = f"```text\nrows -> warps\n```\nSummary: s\n```cuda\n{KERNEL}```\n"
    assert read_reply(text, None).text == KERNEL


@pytest.mark.parametrize(
    ("line", "summary"),
    [
        ("Summary: a b", "a b"),
        ("**Summary:** fewer   barriers", "fewer barriers"),
        ("## Summary: x", "x"),
        ("summary : y", "y"),
        ("no such line", ""),
    ],
)
def test_the_summary_is_one_plain_line(line: str, summary: str) -> None:
    assert read_reply(f"{line}\n```cuda\n{KERNEL}```\n", None).summary == summary


def test_a_long_summary_is_cut() -> None:
    assert len(read_reply(f"Summary: {'word ' * 100}\n```cuda\n{KERNEL}```\n", None).summary) == 240


def test_no_block() -> None:
    assert "neither a ```cuda block nor SEARCH/REPLACE edits" in problem("Summary: s\n//! op f(x) -> y\n")
    assert "neither" in problem("")


def test_two_files() -> None:
    block = f"```cuda\n{BASE}```\n"
    assert "2 ```cuda blocks, at lines 1 and 9; send exactly one" in problem(block + block)


def test_a_block_that_is_not_closed() -> None:
    said = problem(f"Summary: s\n\n```cuda\n{KERNEL}")
    assert "opened at line 3" in said
    assert "cut off" in said


def test_a_piece_of_a_file() -> None:
    assert "no `//! op` line" in problem("```cuda\n__global__ void f() {}\n```\n")


# -- edits --


def test_edits_change_what_they_name() -> None:
    reply = read_reply("Summary: s\n" + edit("int b;", "int c;\nint d;") + "\nand\n" + edit("last();", ""), BASE)
    assert reply.text == "//! op f(x) -> y\n\nint a;\nint c;\nint d;\nint a;\n\n"


def test_edits_inside_a_fence_are_read() -> None:
    assert "int c;" in read_reply(f"Summary: s\n```cuda\n{edit('int b;', 'int c;')}```\n", BASE).text


def test_an_edit_may_build_on_the_one_before() -> None:
    assert "int e;" in read_reply(edit("int b;", "int c;") + edit("int c;", "int e;"), BASE).text


def test_trailing_blanks_and_line_ends_match() -> None:
    text = edit("int a;   \nint b;\t", "int z;").replace("\n", "\r\n")
    assert read_reply(text, BASE.replace("\n", "\r\n")).text == "//! op f(x) -> y\n\nint z;\nint a;\nlast();\n"


def test_lines_can_be_deleted_and_the_file_s_end_edited() -> None:
    assert read_reply(f"{SEARCH_MARK}\nlast();\n{MIDDLE_MARK}\n{REPLACE_MARK}\n", BASE).text.endswith("int a;\n")


def test_leading_blanks_must_match() -> None:
    said = problem(edit("  int b;", "int c;"))
    assert "no line is `  int b;`; line 4 is `int b;`" in said
    assert "blanks at their start included" in said


def test_where_a_search_text_stops_matching_is_said() -> None:
    said = problem(edit("int a;\nint b;\nint c;", "x"))
    assert (
        "Line 2 of it is line 4 of the file, but line 3 of it, `int c;`, differs: line 5 of the file is `int a;`"
        in said
    )


def test_a_unique_part_of_a_line_is_taken() -> None:
    reply = read_reply(edit("f(x)", "f(x, z)") + edit("b", "c = 1"), BASE)
    assert reply.text == "//! op f(x, z) -> y\n\nint a;\nint c = 1;\nint a;\nlast();\n"
    assert read_reply(edit("int b;\nint", "int b, c;\nlong"), BASE).text.count("\nint b, c;\nlong a;\n") == 1
    assert read_reply(edit("last", ""), BASE).text.endswith("\n();\n")


def test_a_part_that_cuts_a_word_or_occurs_twice_is_not_taken() -> None:
    base = BASE + "int count = 10;\n"
    assert "no line is `int count = 1`; line 7 is `int count = 10;`" in problem(edit("int count = 1", "x"), base)
    assert "no line is `ount = 10;`; line 7 is" in problem(edit("ount = 10;", "x"), base)
    assert "in the file 3 times, at lines 3, 4, 5" in problem(edit("int", "long"))
    assert "is not in the file" in problem(edit("\nint b", "\nint c"))  # a blank line is a whole one


def test_the_line_named_is_the_one_most_like_it() -> None:
    base = BASE + "__device__ void spread(unsigned (&w)[4]) {\n__device__ int as_half2(unsigned w) { return w; }\n"
    said = problem(edit("__device__ int as_half2(uint32_t w)", "x"), base)
    assert "; line 8 is `__device__ int as_half2(unsigned w) { return w; }`" in said
    assert "; line" not in problem(edit("nothing_like_it_at_all();", "x"), base)


def test_every_edit_at_fault_is_told_at_once() -> None:
    said = problem(edit("int c;", "x") + edit("int b;", "int d;") + edit("int a;", "y"))
    assert "edit 1: its SEARCH text is not in the file" in said
    assert "edit 2" not in said
    assert "edit 3: its SEARCH text is in the file 2 times" in said


def test_a_search_text_past_the_end() -> None:
    assert "`more();`, differs" in problem(edit("last();\nmore();", "x"))


def test_a_search_text_that_occurs_twice() -> None:
    assert "in the file 2 times, at lines 3, 5; add lines around it" in problem(edit("int a;", "x"))


def test_the_edit_at_fault_is_named() -> None:
    assert problem(edit("int b;", "int c;") + edit("nothing like it at all", "x")).startswith("edit 2: ")


def test_an_empty_search_text() -> None:
    assert "its SEARCH text is empty" in problem(edit("", "int c;"))


def test_edits_that_change_nothing() -> None:
    assert "change nothing" in problem(edit("int b;", "int b; "))


def test_edits_without_a_base() -> None:
    assert "no file to edit" in problem(edit("int b;", "int c;"), None)
    assert "no file to edit" in problem(edit("int b;", "int c;"), "")


def test_a_file_and_edits() -> None:
    assert "both a whole file and" in problem(f"```cuda\n{BASE}```\n" + edit("int b;", "int c;"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{SEARCH_MARK}\nint b;\n", "opened at line 1 of the reply is never closed"),
        (f"x\n{SEARCH_MARK}\nint b;\n{MIDDLE_MARK}\nint", "opened at line 2 of the reply is never closed"),
        (f"{SEARCH_MARK}\nint b;\n{REPLACE_MARK}\n", "has no ======= line"),
        (f"{SEARCH_MARK}\na\n{MIDDLE_MARK}\nb\n{MIDDLE_MARK}\nc\n{REPLACE_MARK}", "a second ======= at line 5"),
        (f"{SEARCH_MARK}\na\n{SEARCH_MARK}\nb\n", "not closed before the next one opens"),
        (f"a\n{REPLACE_MARK}\n", "never opened"),
    ],
)
def test_damaged_edits(text: str, said: str) -> None:
    assert said in problem(text)


def test_any_damage_is_a_problem_or_a_file() -> None:
    """Cut, doubled and shuffled replies never raise anything else, and a cut one is never taken for a whole."""
    random.seed(4)
    whole = f"Summary: s\n```cuda\n{KERNEL}```\n"
    edits = "Summary: s\n" + edit("#include <cuda_bf16.h>", "#include <mma.h>") + edit("#include <cuda_fp16.h>", "")
    for _ in range(300):
        text = random.choice((whole, edits))
        cut = text[: random.randrange(len(text))]
        shuffled = "\n".join(random.sample(text.split("\n"), k=text.count("\n")))
        for damaged in (cut, cut + text, shuffled):
            with contextlib.suppress(ReplyProblem):
                assert "//! op" in read_reply(damaged, KERNEL).text
        if text is whole:
            with pytest.raises(ReplyProblem):
                read_reply(cut.removesuffix("```"), KERNEL)


def test_a_reply_may_say_that_nothing_is_better() -> None:
    assert read_no_change("**Nothing better:** memory is at its least\n") == NoChange("memory is at its least")
    assert read_no_change("I see\n\nNothing better: it is bound by bytes") == NoChange("it is bound by bytes")
    assert read_no_change("Summary: nothing better: than this") is None
    assert read_no_change(f"Nothing better: but here\n```cuda\n{KERNEL}```\n") is None
    assert read_no_change("Nothing better: but\n" + edit("int b;", "int c;")) is None
