"""The reference in a process of its own: `python -m tilewright.frontends.check_reference FILE FUNCTION`.

It imports somebody's Python file, so it is not done in the command's own process. It says on its standard output's
descriptor whether the function was found, then reads one request (what the kernel was given and returned) and answers
with one verdict for each result. The inputs are drawn again from the same seeds, so they need not travel.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.frontends.check_records import ReferenceProblem, ReferenceRequest, ReferenceVerdict
from tilewright.records import TensorSpec, from_json, to_json

_SHOWN_FRAMES = 3


class _Problem(Exception):
    pass


def load_function(path: str, function: str) -> Callable[..., Any]:
    """The function of a Python file."""
    if not Path(path).is_file():
        raise _Problem(f"{path}: no such file; write --reference FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location("tilewright_reference", path)
    if spec is None or spec.loader is None:
        raise _Problem(f"{path}: not a Python file; write --reference FILE.py:FUNCTION")
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever somebody's module raises
        raise _Problem(f"{path} cannot be imported: {_say(error)}") from error
    found = getattr(module, function, None)
    if not callable(found):
        defined = [name for name, value in vars(module).items() if inspect.isfunction(value) and name[0] != "_"]
        raise _Problem(f"{path} defines no function {function!r}; it has {', '.join(defined) or 'none'}")
    made: Callable[..., Any] = found
    return made


def _say(error: Exception) -> str:
    """The error and where it arose, without this module's own frames."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    frames = [frame for frame in frames if "importlib" not in frame.filename][-_SHOWN_FRAMES:]
    places = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__}: {error}" + (f" ({places})" if places else "")


def judge(function: Callable[..., Any], request: ReferenceRequest) -> ReferenceVerdict:
    """Run the reference three times and compare every result."""
    import torch

    from tilewright.devices.emulation.job_memory import input_bytes
    from tilewright.frontends.check_agreement import Expected, agreement

    given = {one.name: _tensor(one.spec, input_bytes(one)) for one in request.inputs}
    torch.manual_seed(0)
    signs = {name: torch.randint(0, 2, tensor.shape) * 2 - 1 for name, tensor in given.items()}
    step = torch.finfo(torch.float32).eps
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in given.items()}
    nearby = {
        name: tensor * (1 + step * signs[name]) if tensor.is_floating_point() else tensor
        for name, tensor in wide.items()
    }
    own, truth, moved = (_results(function, request, tensors) for tensors in (given, wide, nearby))
    verdicts = []
    outputs = {output.name: output for output in request.outputs}
    for position, name in enumerate((*request.results, *request.in_place)):
        found = _tensor(outputs[name].spec, outputs[name].content)
        expected = Expected(name, own[position], truth[position], moved[position])
        verdicts.append(agreement(found, expected, request.tolerance))
    return ReferenceVerdict(tuple(verdicts))


def _tensor(spec: TensorSpec, content: Any) -> Any:
    """A CPU tensor on bytes in the order of its storage."""
    import torch

    from tilewright.devices.cuda.torch_dtypes import TORCH_DTYPE

    raw = torch.frombuffer(bytearray(content), dtype=torch.uint8) if len(content) else torch.empty(0, dtype=torch.uint8)
    return raw.view(TORCH_DTYPE[spec.dtype]).as_strided(spec.shape, spec.stride)


def _results(function: Callable[..., Any], request: ReferenceRequest, tensors: dict[str, Any]) -> tuple[Any, ...]:
    """The op's results, then the tensors changed in place: as returned, or as the function left them."""
    import torch

    numbers = {number.name: number.value for number in request.numbers}
    arguments = {name: tensors[name].clone() if name in tensors else numbers.get(name) for name in request.names}
    try:
        with torch.no_grad():
            returned = function(**arguments)
    except TypeError as error:
        wanted = f"it is called with the op's parameter names: {', '.join(request.names)}"
        raise _Problem(f"the reference cannot be called: {_say(error)}; {wanted}") from error
    except Exception as error:  # whatever somebody's function raises
        raise _Problem(f"the reference failed: {_say(error)}") from error
    results = () if returned is None else tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
    whole = len(request.results) + len(request.in_place)
    if len(results) == len(request.results):
        results = (*results, *(arguments[name] for name in request.in_place))
    names = ", ".join((*request.results, *request.in_place))
    if len(results) != whole or not all(isinstance(result, torch.Tensor) for result in results):
        raise _Problem(f"the reference returned {len(results)} values where the op has {names}; return those tensors")
    return results


def main(path: str, function: str) -> int:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the reference prints is not an answer
    sys.argv = [path]

    def say(message: ReferenceVerdict | ReferenceProblem) -> None:
        replies.write(json.dumps(to_json(message)) + "\n")
        replies.flush()

    try:
        found = load_function(path, function)
        say(ReferenceVerdict(()))
        line = sys.stdin.readline()
        if not line:
            return 0
        request: ReferenceRequest = from_json(ReferenceRequest, json.loads(line))
        say(judge(found, request))
    except _Problem as problem:
        say(ReferenceProblem(str(problem)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
