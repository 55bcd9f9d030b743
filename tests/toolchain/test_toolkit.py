"""Finding the compiler, its headers and tools."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.toolchain import ToolchainError, find_toolkit, nvrtc


def test_what_is_found_exists() -> None:
    found = find_toolkit()
    assert found.library.name.startswith("libnvrtc.so.")
    assert ".alt" not in found.library.name
    assert all((directory / "cuda_fp16.h").is_file() or directory.name == "cccl" for directory in found.include_dirs)
    assert re.fullmatch(r"NVRTC \d+\.\d+(\.\d+)?", found.compiler)
    assert re.fullmatch(r"CUDA \d+\.\d+, CCCL \d+\.\d+\.\d+", found.headers)


def test_the_tools_and_cute_of_the_development_environment() -> None:
    found = find_toolkit()
    assert found.nvdisasm is not None
    assert found.cute_include is not None
    assert re.fullmatch(r"\d+\.\d+\.\d+", found.cutlass or "")


def test_nothing_found_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_wheel_roots", list)
    monkeypatch.setattr(nvrtc, "SYSTEM_TOOLKIT", tmp_path / "none")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(ToolchainError, match="pip install nvidia-cuda-nvrtc") as caught:
        find_toolkit()
    assert str(tmp_path) in str(caught.value)


def test_a_system_toolkit_is_the_second_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib64").mkdir()
    (tmp_path / "include").mkdir()
    (tmp_path / "lib64" / "libnvrtc.so.13.1.7").write_bytes(b"")
    (tmp_path / "lib64" / "libnvrtc.so.13").symlink_to("libnvrtc.so.13.1.7")
    (tmp_path / "include" / "cuda_fp16.h").write_text("")
    (tmp_path / "include" / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  13010\n")
    monkeypatch.setattr(nvrtc, "_wheel_roots", list)
    monkeypatch.setattr(nvrtc, "SYSTEM_TOOLKIT", tmp_path / "nowhere")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    found = find_toolkit()
    assert found.compiler == "NVRTC 13.1.7"
    assert found.headers == "CUDA 13.1, CCCL absent"
    assert found.library == tmp_path / "lib64" / "libnvrtc.so.13"


def test_a_library_without_headers_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libnvrtc.so.13").write_bytes(b"")
    monkeypatch.setattr(nvrtc, "_wheel_roots", list)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(ToolchainError, match="no CUDA headers beside it"):
        find_toolkit()


def test_cute_headers_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CUTLASS_INCLUDE", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"no cute/tensor\.hpp"):
        find_toolkit()
    (tmp_path / "cute").mkdir()
    (tmp_path / "cutlass").mkdir()
    (tmp_path / "cute" / "tensor.hpp").write_text("")
    (tmp_path / "cutlass" / "version.h").write_text(
        "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 5\n#define CUTLASS_PATCH 0\n"
    )
    found = find_toolkit()
    assert found.cute_include == tmp_path
    assert found.cutlass == "4.5.0"
    assert found.search_path[0] == tmp_path


def test_headers_a_root_lacks_come_from_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "lib").mkdir(parents=True)
    (first / "include").mkdir()
    (first / "lib" / "libnvrtc.so.13").write_bytes(b"")
    (first / "include" / "cuda_fp16.h").write_text("")
    (second / "include" / "cccl").mkdir(parents=True)
    monkeypatch.setattr(nvrtc, "_wheel_roots", lambda: [first])
    monkeypatch.setenv("CUDA_HOME", str(second))
    expected = (first / "include", second / "include" / "cccl", second / "include")
    assert find_toolkit().include_dirs == expected
