"""Launches cut out of host code that cannot be run, and headers that lie elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.importing.examples import PROGRAM
from typer.testing import CliRunner

from tilewright.frontends.cli.main import app
from tilewright.importing.importer import launchers, other_launching_functions
from tilewright.importing.launch_sites import isolate_launch, launch_sites
from tilewright.importing.sources import ImportProblem, Source, read_source


def cut(text: str, kernel: str) -> str:
    """The function that a launch becomes, on one line."""
    source = read_source("k.cu", text, None)
    site = next(one for one in launch_sites(source) if one.kernel.name == kernel)
    made, name = isolate_launch(source, site)
    item = next(one for one in made.items if one.name == name)
    return " ".join(made.text[item.code_start : item.end].split())


def program(statements: str) -> str:
    return f"__global__ void k(float* x, int n) {{ x[0] = n; }}\nvoid f(int m, Matrix* a, float* y) {{ {statements} }}"


def test_the_launches_of_a_program_are_found() -> None:
    source = read_source("k.cu", PROGRAM, None)
    assert launchers(source) == []
    assert other_launching_functions(source, []) == ["main"]
    assert [site.name for site in launch_sites(source)] == ["add", "transpose", "scale", "clip"]


def test_a_size_that_the_author_chose_becomes_a_parameter() -> None:
    assert cut(PROGRAM, "add") == (
        "void launch_of_add(tw::Bare a, tw::Bare b, tw::Bare c, int count) { int threads = 256; "
        "add<<<( count + threads - 1 ) / threads, threads>>>(a, b, c, count); }"
    )


def test_what_chooses_the_instance_and_the_block_stays() -> None:
    assert cut(PROGRAM, "transpose") == (
        "void launch_of_transpose(tw::Bare in, tw::Bare out, int rows, int cols) { constexpr int width = 8; "
        "dim3 block(TILE , width); dim3 grid(( cols + TILE - 1 ) / TILE , ( rows + width - 1 ) / width); "
        "transpose < float , width ><<<grid, block>>>(in, out, rows, cols); }"
    )


def test_a_number_that_a_branch_or_a_call_sets_is_a_parameter() -> None:
    made = cut(PROGRAM, "scale")
    assert "int lanes" in made.partition("{")[0]
    assert "float by" in made  # made of argv, which is no number


def test_the_fields_of_a_struct_are_parameters() -> None:
    made = cut(PROGRAM, "clip")
    assert "int window_low, int window_high" in made.partition("{")[0]
    assert "tw_made.low = window_low; tw_made.high = window_high;" in made


def test_a_struct_with_an_array_is_named() -> None:
    with pytest.raises(ImportProblem, match=r"k\.cu:\d+: the launch of clip passes window, a `Window`"):
        cut(PROGRAM.replace("int low, high;", "int low[2], high;"), "clip")


@pytest.mark.parametrize(
    ("statements", "made"),
    [
        ("k<<<a->rows() / 4, 32>>>(y, m);", "(tw::Bare x, int m, long long a_rows) { k<<<a_rows / 4, 32>>>(x, m); }"),
        # The grid was computed before the size changed: no plan may say that it follows from it.
        ("int g = m / 4; m = m * 2; k<<<g, 32>>>(y, m);", "(tw::Bare x, int m, int g) { k<<<g, 32>>>(x, m); }"),
        ("int g = m / 4; k<<<g, 32>>>(y, g);", "(tw::Bare x, int m) { int g = m / 4; k<<<g, 32>>>(x, g); }"),
        ("{ int g = 3; } int g = m; k<<<g, 1>>>(y, 7);", "(tw::Bare x, int m) { int g = m; k<<<g, 1>>>(x, 7); }"),
        ("for (int i = 0; i < m; ++i) k<<<1, 32>>>(y, i);", "(tw::Bare x, int n) { k<<<1, 32>>>(x, n); }"),
        ("int g; read(&g); k<<<g, 32>>>(y + m, 1);", "(tw::Bare x, int g) { k<<<g, 32>>>(x, 1); }"),
    ],
)
def test_what_a_launch_depends_on(statements: str, made: str) -> None:
    assert cut(program(statements), "k") == f"void launch_of_k{made}"


def test_a_kernel_of_a_namespace() -> None:
    text = "namespace n { __global__ void k(float* x) { x[0] = 1; } }\nvoid f(Pool* p) { n::k<<<1, 32>>>(p->x()); }"
    assert "n::k<<<1, 32>>>(x);" in cut(text, "k")
    assert read_source("k.cu", text, None).scope("k") == "n::"
    assert read_source("k.cu", "namespace { namespace a { } }" + text, None).scope("k") == "n::"


def test_a_block_that_a_branch_changes_is_refused() -> None:
    with pytest.raises(ImportProblem, match="depends on block, which a branch or a call sets"):
        cut(program("dim3 block(32); if (m > 9) block = dim3(64); k<<<1, block>>>(y, m);"), "k")


def folder_with_headers(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "lib" / "deep").mkdir(parents=True)
    (tmp_path / "src").mkdir()
    (tmp_path / "lib" / "block.hpp").write_text("\n#define BLOCK 96\n")
    (tmp_path / "lib" / "other.hpp").write_text('#include "block.hpp"\n#error never read\n')
    main = '#ifdef OTHER\n#include <other.hpp>\n#else\n#include <block.hpp>\n#endif\n#include "gone.h"\nint a = BLOCK;'
    (tmp_path / "src" / "k.cu").write_text(main)
    return tmp_path / "src" / "k.cu", tmp_path / "lib"


def read(path: Path, *include: Path) -> Source:
    return read_source(path.name, path.read_text(), path.parent, include)


def test_headers_are_looked_for_where_one_says(tmp_path: Path) -> None:
    main, library = folder_with_headers(tmp_path)
    assert "BLOCK 96" not in read(main).text
    source = read(main, library)
    assert "BLOCK 96" in source.text
    assert "never read" not in source.text  # in a branch that is left out, which must not use up the header either
    assert source.missing == ("gone.h",)
    assert source.at(source.text.split("\n").index("#define BLOCK 96") + 1) == "block.hpp:2"
    assert source.at(source.text.split("\n").index("int a = BLOCK;") + 1) == "k.cu:7"


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.slow
def test_a_program_comes_in_and_is_right(tmp_path: Path) -> None:
    (tmp_path / "program.cu").write_text(PROGRAM)
    (tmp_path / "reference.py").write_text("def transpose(in_, out):\n    return in_.T\n")
    asked = ["import", str(tmp_path / "program.cu"), "-o", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(app, [*asked, "--reference", f"{tmp_path / 'reference.py'}:transpose"])
    report = json.loads(done.stdout)
    files = {one["function"]: one for one in report["imported"]}
    assert set(files) == {"add", "transpose", "scale", "clip"}
    assert [one["check"] for one in files.values()] == ["clean"] * 4
    assert files["transpose"]["compared"]
    assert "ceil_div(count, 256)" in Path(files["add"]["file"]).read_text()
    assert "clip_as_launched<<<1, 32>>>(x, window_low, window_high)" in Path(files["clip"]["file"]).read_text()
    assert report["refused"] == []
