"""Records which CUDA extension functions a Python model calls, by running it once on meta tensors.

`install` replaces torch's extension loaders in the child process of a reference. A call of an extension runs the host
part of its C++ code, which gives the shapes of the results. `main` is the child that compiles and runs host programs.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.child.boundary import Wall, enclose
from tilewright.child.envelope import message_in
from tilewright.child.inside import leave, open_channel
from tilewright.importing.calls import CallArgument, CallSpec
from tilewright.importing.host_program import header, host_program
from tilewright.importing.recording import HostAnswer, HostRequest, first_error, read_recording
from tilewright.importing.signatures import plan_names
from tilewright.importing.sources import ImportProblem, Kind, Source, read_source
from tilewright.records import DType

_ADDRESS_BYTES = 4 << 30
_FILE_BYTES = 256 << 20
_MOST_OUTPUT = 8 << 20


def main(arguments: Sequence[str]) -> int:
    channel, _ = open_channel(arguments, listens=False)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
    enclose(Wall(programs=True), os.environ["HOME"])
    channel.listen()
    compiled = ""
    program: Path | str = ""
    while True:
        asked = message_in(channel.next(), HostRequest)
        try:
            if asked.source != compiled:  # one program serves several requests
                program, compiled = compile_program(asked.source, Path.cwd(), asked.seconds), asked.source
            if isinstance(program, str):
                answer = HostAnswer("", program)
            else:
                answer = run_program(program, asked.calls, asked.seconds)
        except subprocess.TimeoutExpired:
            answer = HostAnswer("", f"the launcher or its compilation took more than {asked.seconds:g} s")
        channel.say(answer)


def compile_program(text: str, folder: Path, seconds: float) -> Path | str:
    """The path of the program, or the compiler's errors."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return "no C++ compiler was found (c++, g++ or clang++); install one: it runs the launcher to see its launches"
    source, linked, program = folder / "host.cpp", folder / "linked", folder / "host"
    command = [compiler, "-std=c++17", "-O0", "-w", "-fno-diagnostics-color", "-I", str(folder)]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        whole = [*command, *arguments]
        return subprocess.run(whole, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)

    shared = folder / "recording_host.hpp"
    if not shared.exists():
        shared.write_text(header(), "utf-8")
    elif not (compiled := folder / "recording_host.hpp.gch").exists():  # pays from the second program on
        run("-x", "c++-header", str(shared), "-o", str(compiled))
    source.write_text(text, "utf-8")
    done = run(str(source), "-o", str(linked))
    if done.returncode:
        return done.stderr[:20_000] or "the C++ compiler failed"
    # The boundary lets nobody change a mode, and linkers make a file executable by that.
    program.unlink(missing_ok=True)
    with open(program, "xb", opener=lambda path, flags: os.open(path, flags, 0o700)) as file:
        file.write(linked.read_bytes())
    return program


def run_program(program: Path, calls: Sequence[str], seconds: float) -> HostAnswer:
    lines = "".join(f"{call}\n" for call in calls)
    done = subprocess.run(
        [str(program)], input=lines, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
    )
    died = "" if done.returncode == 0 else f"the launcher died (status {done.returncode}); it may read tensors' memory"
    return HostAnswer(done.stdout[:_MOST_OUTPUT], died)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))

_SECONDS = 60.0
_BOUND = re.compile(r"\bm\s*\.\s*(?:def|impl)\s*\(\s*\"(\w+)[^\"]*\"\s*,[^&;]*?&?\s*([A-Za-z_]\w*(?:::\w+)*)\s*[,)]")


@dataclass(frozen=True)
class ModelRequest:
    """Run the model's `forward` on its own inputs."""


@dataclass(frozen=True)
class ExtensionCall:
    """One call of a function of an extension."""

    function: str  # in C++
    source: str
    arguments: tuple[CallArgument, ...]
    origins: tuple[str, ...]  # "input:NAME", "parameter:NAME", "result" or "computed"; "" for numbers


@dataclass(frozen=True)
class ModelAnswer:
    calls: tuple[ExtensionCall, ...]
    is_whole: bool  # `forward` is this one call
    inputs: tuple[str, ...]  # of `forward`: "input:NAME" for a tensor, else the value's repr
    problems: tuple[str, ...]


@dataclass
class _Recorder:
    calls: list[ExtensionCall]
    problems: list[str]
    origins: dict[int, str]  # of storages


_recorder = _Recorder([], [], {})


def install(folder: str) -> None:
    """Replace torch's extension loaders; call this before the model's source runs."""
    import torch
    from torch.utils import cpp_extension

    def load_inline(name: str, cpp_sources: Any = "", cuda_sources: Any = "", **_: Any) -> _Extension:
        return _Extension(name, "\n".join([*_texts(cuda_sources), *_texts(cpp_sources)]), None)

    def load(name: str, sources: Any = (), **_: Any) -> _Extension:
        paths = [Path(folder, one) for one in _texts(sources)]
        return _Extension(name, "\n".join(path.read_text("utf-8", "replace") for path in paths), paths[0].parent)

    stand_ins: Any = cpp_extension
    stand_ins.load_inline, stand_ins.load = load_inline, load
    gpu: Any = torch.cuda
    gpu.is_available, gpu.synchronize = (lambda: True), (lambda *_: None)
    gpu.get_device_capability, gpu.current_device, gpu.empty_cache = (lambda *_: (9, 0)), (lambda: 0), (lambda: None)


def _texts(given: Any) -> list[str]:
    return [str(given)] if isinstance(given, (str, Path)) else [str(one) for one in given or ()]


class _Extension:
    """Stands in for a loaded extension module."""

    def __init__(self, name: str, text: str, folder: Path | None) -> None:
        self._name, self._text, self._folder = name, text, folder
        self._bound = {python: cpp.rpartition("::")[2] for python, cpp in _BOUND.findall(text)}
        self._source: Source | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **named: self._call(self._bound.get(name, name), arguments, named)

    def _call(self, function: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        try:
            return self._recorded(function, arguments, named)
        except (ImportProblem, StopIteration) as problem:
            text = str(problem) or f"the extension {self._name} defines no host function {function}"
            _recorder.problems.append(text)
            raise RuntimeError(text) from None

    def _recorded(self, function: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self._source is None:
            self._source = read_source(f"{self._name}.cu", self._text, self._folder)
        if any(item.name == function for item in self._source.of_kind(Kind.KERNEL)):
            raise ImportProblem(f"{function} is a kernel; Python can call only host functions")
        item = next(i for i in self._source.of_kind(Kind.HOST) if i.name == function and i.body is not None)
        names = plan_names(item)
        values = [*arguments, *(named[name] for name in names[len(arguments) :] if name in named)]
        if len(values) != len(names):
            raise ImportProblem(f"{function} takes {len(names)} arguments and is given {len(values)}")
        given = [_given(name, value) for name, value in zip(names, values, strict=True)]
        call = CallSpec(tuple(given))
        program = compile_program(host_program(self._source, function), Path.cwd(), _SECONDS)
        if isinstance(program, str):
            raise ImportProblem(first_error(program))
        (run, *_) = read_recording(run_program(program, [call.line], _SECONDS)).runs
        if run.error:
            raise ImportProblem(f"{function}: {run.error}")
        origins = tuple(_origin(value) for value in values)
        _recorder.calls.append(ExtensionCall(function, self._text, call.arguments, origins))
        tensors = [value for value in values if hasattr(value, "untyped_storage")]
        made = []
        for result in run.results:
            if result is None:
                raise ImportProblem(f"{function} returns something other than tensors")
            made.append(tensors[result.tensor] if result.tensor < len(tensors) else _result(result.dtype, result.shape))
        return None if not made else made[0] if len(made) == 1 else made


def _given(name: str, value: Any) -> CallArgument:
    import torch

    if isinstance(value, torch.Tensor):
        if not value.is_contiguous():
            raise ImportProblem(f"{name} is given as a strided view of another tensor")
        torch_name = str(value.dtype).removeprefix("torch.")
        dtype = next((one.value for one in DType if one.torch_name == torch_name), torch_name)
        return CallArgument(name, "tensor", dtype, tuple(value.shape))
    if value is None or type(value) in (bool, int, float):
        return CallArgument.of(name, value)
    if isinstance(value, (tuple, list)) and all(isinstance(one, int) for one in value):
        return CallArgument.of(name, tuple(value))
    raise ImportProblem(f"{name} is given as a {type(value).__name__}; only tensors and numbers can be imported")


def _result(dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    made = torch.empty(shape, dtype=getattr(torch, DType(dtype).torch_name), device="meta")
    _recorder.origins[_storage(made)] = "result"
    _KEPT.append(made)
    return made


_KEPT: list[Any] = []  # storages are identified by address, so none may be freed


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _origin(value: Any) -> str:
    if not hasattr(value, "untyped_storage"):
        return ""
    return _recorder.origins.get(_storage(value), "computed")


def record_model(model: Any, request: ModelRequest) -> ModelAnswer:
    """Run `forward` of the class `model` and record its extension calls."""
    import inspect

    import torch

    scope = model.forward.__globals__
    with torch.device("meta"), _pretending(), torch.no_grad():
        made = model(*_inputs(scope, "get_init_inputs"))
        inputs = _inputs(scope, "get_inputs")
        names = list(inspect.signature(model.forward).parameters)[1:]
        for name, value in zip(names, inputs, strict=False):
            if isinstance(value, torch.Tensor):
                _recorder.origins[_storage(value)] = f"input:{name}"
        for name, value in (*made.named_parameters(), *made.named_buffers()):
            _recorder.origins[_storage(value)] = f"parameter:{name}"
        _KEPT.extend(inputs)
        try:
            result = made(*inputs)
        except Exception as error:
            if not _recorder.problems:
                _recorder.problems.append(f"forward failed on meta tensors: {error}")
            result = None
    calls = tuple(_recorder.calls)
    whole = (
        len(calls) == 1
        and isinstance(result, torch.Tensor)
        and _origin(result) == "result"
        and all(one.startswith(("input:", "parameter:")) for one in calls[0].origins if one)
    )
    written = tuple(_origin(value) if isinstance(value, torch.Tensor) else repr(value) for value in inputs)
    return ModelAnswer(calls, whole, written, tuple(_recorder.problems))


def _inputs(scope: dict[str, Any], name: str) -> list[Any]:
    found = scope.get(name)
    return list(found()) if found is not None else []


def _pretending() -> Any:
    """A mode in which every tensor reports that it is on a GPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    def is_gpu(value: Any) -> bool:
        return isinstance(value, (str, torch.device)) and str(value).startswith("cuda")

    class Pretending(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = {k: ("meta" if is_gpu(v) else v) for k, v in (kwargs or {}).items()}
            if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
                return True
            if func is torch.Tensor.cuda:
                return args[0]
            return func(*("meta" if is_gpu(one) else one for one in args), **named)

    return Pretending()
