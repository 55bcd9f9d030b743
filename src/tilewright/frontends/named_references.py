"""What `check --reference` names: a function in a file, a module in one, a KernelBench file, or the run that made it.

All but the first become a text of their own with a function of the op's parameters, as they do for `make`.
"""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tilewright import tasks
from tilewright.frontends.command_line import split_reference
from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.frontends.run_opening import loaded
from tilewright.kernel_file import ArgumentValue
from tilewright.records import Task, TensorSpec
from tilewright.store import Store, StoreError

_WRITE = "write FILE.py:FUNCTION, FILE.py:MODULE(ARGUMENTS), a KernelBench FILE.py or the name of the run that made it"


@contextmanager
def named_reference(text: str, arguments: Mapping[str, ArgumentValue]) -> Iterator[tuple[Path, str]]:
    """The file and the function in it; `arguments` are those of the call that is checked."""
    place, colon, name = text.strip().partition(".py:")
    path = Path(f"{place}.py").expanduser() if colon else Path(text)
    known = path.suffix == ".py" and path.is_file()
    module = _class(path, name.partition("(")[0]) if known else None
    if known and not colon and "def get_inputs" not in path.read_text(encoding="utf-8"):
        raise BadArgument(f"--reference {text}: {_WRITE}")
    if colon and module is None and "(" not in name:
        yield split_reference(text)
        return
    task = _task(text, module, arguments) if known else _task_of_run(text)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / (path.name if known else f"{task.name}.py")
        written.write_text(task.reference, encoding="utf-8")
        yield written, task.function


def _class(path: Path, name: str) -> ast.ClassDef | None:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise BadArgument(f"--reference {path} cannot be read as Python: {error}") from None
    return next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _task(text: str, module: ast.ClassDef | None, arguments: Mapping[str, ArgumentValue]) -> Task:
    """The task of a module or a problem file; the arguments that its `forward` takes have the sizes of the call."""
    methods = [one for one in (module.body if module else ()) if isinstance(one, ast.FunctionDef)]
    taken = [argument.arg for one in methods if one.name == "forward" for argument in one.args.args]
    given = {name: value for name, value in arguments.items() if name in taken}
    shapes = {name: _shape_words(spec) for name, spec in given.items() if isinstance(spec, TensorSpec)}
    numbers = {name: str(one) for name, one in given.items() if isinstance(one, (int, float)) and one is not None}
    try:
        task = tasks.open_task(text, shapes, numbers, {}, tasks.TaskOptions(allow_degenerate=True, fixed_all=True))
    except tasks.TaskError as problem:
        raise BadArgument(f"--reference {text}: {problem}") from None
    if task is None:
        raise BadArgument(f"--reference {text}: {_WRITE}")
    return task


def _task_of_run(text: str) -> Task:
    try:
        run = loaded(Store().open_run(text.strip()))
    except StoreError:
        run = None
    if run is None:
        raise BadArgument(f"--reference {text}: there is no such file or run; {_WRITE}")
    return run.task


def _shape_words(spec: TensorSpec) -> str:
    return f"{'x'.join(map(str, spec.shape))}:{spec.dtype.value}"
