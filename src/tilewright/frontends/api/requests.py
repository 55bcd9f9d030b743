"""The task of a request or of `--reference`, and the run in which its kernel is made; no author is asked here."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.metadata
import importlib.util
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright import __version__, records, tasks
from tilewright.frontends.api import choices
from tilewright.frontends.api.choices import ChosenDevice
from tilewright.frontends.api.judges import precision_settler
from tilewright.frontends.api.kernel_arguments import spec_text
from tilewright.frontends.api.reporter import Reporter
from tilewright.kernel_file import ArgumentValue, KernelFile, Parameter, evaluate
from tilewright.playbook.errors import NotSupported, precheck
from tilewright.reference import Reference, ReferenceLimits, ReferenceProblem, start_ahead
from tilewright.store import NotAccepted, Request, RunFolder, RunList, Store, StoreError
from tilewright.tasks import TaskError
from tilewright.tasks.errors import BadArgument
from tilewright.tasks.reading import python_source
from tilewright.tasks.reading.python_source import INSTALLED
from tilewright.toolchain import find_toolkit

EVERY_DIMENSION = "all"  # among the fixed dimensions of a request


# -- tasks --


def read_task(
    store: Store, request: Request, settings: records.Settings, device: ChosenDevice, fresh: bool
) -> records.Task | None:
    """The task of a request. Child processes that are needed later import torch while this one waits."""
    limits = [ReferenceLimits()]  # a file is described in one child, and then probed in another
    limits += [ReferenceLimits()] * (settings.author == choices.PLAYBOOK)  # which traces the reference
    limits += [ReferenceLimits() if device.index is None else ReferenceLimits.on_gpu(device.index)]
    start_ahead(*limits)
    return task_of(request, _precheck(store, settings, fresh), precision_settler(device))


def task_of(
    request: Request,
    precheck: tasks.Precheck | None = None,
    resolve_precision: tasks.ResolvePrecision = tasks.precision_from_channels,
) -> records.Task | None:
    """The task of a request that is code; None for words. `precheck` may refuse its source before it runs."""
    options = task_options(request, resolve_precision)
    options = replace(options, precheck=precheck) if precheck else options
    if request.module:
        from tilewright.tasks.lifting.module_source import constant_fields  # needs torch, which is slow to import

        task = tasks.task_from_module_source(
            request.text, request.function, request.module, request.shapes, options, request.numbers, request.values
        )
        constants = constant_fields(request.text)
    elif request.function:
        task = tasks.task_from_source(
            request.text, request.function, request.shapes, request.numbers, options, request.values
        )
        constants = [ast.unparse(node) for node in ast.parse(request.text).body if isinstance(node, ast.Assign)]
    else:
        return tasks.open_task(request.text, request.shapes, request.numbers, request.values, options)
    return replace(task, assumptions=(*task.assumptions, *(f"always {one}" for one in constants)))


def _precheck(store: Store, settings: records.Settings, fresh: bool) -> tasks.Precheck | None:
    """Refuses by its source alone what the playbook cannot write; a kernel from the library needs no author."""
    if settings.author != choices.PLAYBOOK:
        return None

    def check(source: str, function: str) -> None:
        try:
            precheck(source, function)
        except NotSupported:
            if fresh or all(source.strip() not in one.task().reference for one in store.library.all()):
                raise

    return check


def task_options(request: Request, resolve_precision: tasks.ResolvePrecision) -> tasks.TaskOptions:
    return tasks.TaskOptions(
        gpu=request.gpu,
        precision=request.precision,
        goal=request.goal,
        allow_library=request.allow_library,
        fixed=tuple(name for name in request.fixed if name != EVERY_DIMENSION),
        fixed_all=EVERY_DIMENSION in request.fixed,
        allow_degenerate=request.allow_degenerate,
        resolve_precision=resolve_precision,
    )


def gradient_task(task: records.Task, request: Request, reporter: Reporter) -> records.Task:
    """The task of a function's gradients, after a check that they are right. Raises `TaskError`."""
    from tilewright.verify.gradient_check import gradient_problem  # needs torch, which is slow to import

    tasks.refuse_without_gradients(task)
    with reporter.live("checking the gradients"):
        with Reference(task.reference, task.function) as reference:
            try:
                problem = gradient_problem(task, reference)
            except ReferenceProblem as error:
                raise TaskError(f"the gradients of {task.name} cannot be checked: {error}") from error
        if problem:
            raise TaskError(f"{task.name}: {problem}; correct its backward, or leave the gradients to the function")
        return tasks.backward_task(task, tasks.TaskOptions(allow_degenerate=request.allow_degenerate))


# -- runs --


def environment_of(device: ChosenDevice) -> records.Environment:
    return records.Environment(
        tilewright=__version__,
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
        compiler=find_toolkit().compiler,
        device=device.label,
        platform=f"{platform.system()} {platform.machine()}",
        emulated=device.is_emulated,
    )


@contextmanager
def begun_run(
    store: Store,
    request: Request,
    task: records.Task | None,
    settings: records.Settings,
    device: ChosenDevice,
    fresh: bool,
) -> Iterator[tuple[RunFolder, bool]]:
    """The folder of a run, locked, and whether it is new. `task`: None where the request is words.

    Unless it is to be `fresh`, a run that waits with the same words is continued: they are not paid for twice.
    """
    listing = RunList(()) if fresh or task is not None else store.runs()
    for one in listing.waiting:
        if one.request == request and one.id not in listing.workers:
            folder = store.open_run(one.id)
            with folder.lock():
                folder.reopen(settings)
                yield folder, False
                return
    folder = store.create_run(task, settings, environment_of(device), request)
    with folder.lock():
        yield folder, True


# -- Python objects by name --

_NAMED = re.compile(
    r"(?P<module>[A-Za-z_]\w*(?:\.\w+)*):(?P<name>[A-Za-z_][\w.]*)(?:\((?P<arguments>.*)\))?", re.DOTALL
)


def is_named_object(text: str) -> bool:
    """Whether a request is `package.module:Name`; raises `BadArgument` for one that is misspelt, and no words."""
    text = text.strip()
    place, colon, _ = text.partition(":")
    if not colon or place.endswith(".py") or Path(text).exists():
        return False
    found = _NAMED.fullmatch(text)
    if found is not None:
        with contextlib.suppress(ImportError, ValueError):
            if importlib.util.find_spec(found["module"].partition(".")[0]) is not None:
                return True
    if re.search(r"\s", place):
        return False
    if found is None and "(" in text and text.count("(") != text.count(")"):
        raise BadArgument(f"{text}: a bracket is not closed; write PACKAGE.MODULE:NAME(ARGUMENTS)")
    if re.search(r"\s", text.partition("(")[0]):
        return False
    raise BadArgument(f"{text}: no package called {place} can be imported; write PACKAGE.MODULE:NAME or FILE.py:NAME")


def named_object(text: str) -> Any:
    """The object that `package.module:Name` or `package.module:Name(64, eps=1e-5)` names; a class is instantiated."""
    found = _NAMED.fullmatch(text.strip())
    assert found is not None
    try:
        module = importlib.import_module(found["module"])
    except Exception as error:  # whatever somebody's module raises
        raise BadArgument(f"{text}: {found['module']} cannot be imported: {type(error).__name__}: {error}") from None
    value: Any = module
    for name in found["name"].split("."):
        if not hasattr(value, name):
            raise BadArgument(f"{text}: {getattr(value, '__name__', value)} has no {name}")
        value = getattr(value, name)
    if found["arguments"] is None and not isinstance(value, type):
        return value
    if not callable(value):
        raise BadArgument(f"{text}: {found['name']} is a {type(value).__name__}, which takes no arguments")
    import torch

    arguments = found["arguments"] or ""
    try:
        torch.manual_seed(0)
        return eval(f"{found['name']}({arguments})", {"torch": torch, **vars(module)})
    except SyntaxError:
        raise BadArgument(f"{text}: {arguments!r} are no arguments of a call; write them as in Python") from None
    except Exception as error:  # whatever somebody's constructor raises
        raise BadArgument(f"{text} fails: {type(error).__name__}: {' '.join(str(error).split())}") from None


def installed_name(text: str) -> str:
    """`package.module:Name(...)` for a name in a file of an installed package; any other text as it is."""
    path, mark, name = text.strip().partition(".py:")
    if not mark or not Path(f"{path}.py").is_file():
        return text
    place = Path(path).expanduser().resolve()
    for folder in map(Path, sys.path):
        if folder.name in INSTALLED and place.is_relative_to(folder.resolve()):
            return f"{'.'.join(place.relative_to(folder.resolve()).parts)}:{name}"
    return text


def resolved(request: Request) -> Request:
    """A request with the source of the object it names; any other as it is."""
    text = installed_name(request.text)
    if request.function or not is_named_object(text):
        return request
    from tilewright.frontends.api.objects import object_request  # needs torch, which takes seconds to import

    found = object_request(named_object(text), request.shapes, request.numbers, request.values).request
    known = {name: getattr(found, name) for name in ("text", "shapes", "values", "function", "module")}
    return replace(request, **known)


WAYS = (
    "write FILE.py:FUNCTION, FILE.py:MODULE(ARGUMENTS), PACKAGE.MODULE:NAME(ARGUMENTS), a KernelBench FILE.py, a task "
    "folder or the name of the run that made the kernel"
)


@contextmanager
def named_reference(
    text: str, shapes: Mapping[str, str], numbers: Mapping[str, str] | None = None
) -> Iterator[tuple[Path, str]]:
    """A file with a function of the kernel's parameters, and its name. The sizes are those of the call."""
    text = text.strip()
    found = _function(text)
    if found is not None:
        yield found
        return
    task = _task(text, shapes, numbers or {})
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, f"{task.function}.py")
        written.write_text(task.reference, encoding="utf-8")
        try:
            yield written, task.function
        except BadArgument as problem:
            raise BadArgument(str(problem).replace(str(written), f"--reference {text}")) from None


def split_reference(text: str) -> tuple[Path, str]:
    """`FILE.py:NAME`, whatever has that name in the file."""
    place, _, name = text.rpartition(":")
    path = Path(place).expanduser()
    if not path.is_file():
        raise BadArgument(f"--reference {text}: there is no file {path}; {WAYS}")
    return path, name


def _function(text: str) -> tuple[Path, str] | None:
    """The function that a text names as it stands; None where it names anything else."""
    place, colon, name = text.partition(".py:")
    path = Path(f"{place}.py" if colon else text).expanduser()
    if not colon and (path.suffix != ".py" or not path.is_file()):
        return None
    if not path.is_file():
        raise BadArgument(f"--reference {text}: there is no file {path}; {WAYS}")
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise BadArgument(f"--reference {path} cannot be read as Python: {error}") from None
    functions, classes = python_source.defined_names(tree)
    if not colon:
        if "get_inputs" in functions:
            return None
        public = [one for one in functions if not one.startswith("_")]
        if len(public) != 1:
            raise BadArgument(f"--reference {text}: it defines {', '.join((*public, *classes)) or 'nothing'}; {WAYS}")
        return path, public[0]
    is_object = name in classes or "(" in name or (name in python_source.bound_names(tree) and name not in functions)
    if not is_object and not name.isidentifier():
        raise BadArgument(f"--reference {text}: {WAYS}")
    return None if is_object else (path, name)


def _task(text: str, shapes: Mapping[str, str], numbers: Mapping[str, str]) -> records.Task:
    """The task of a module, a problem or a folder, with sizes for what its `forward` takes; or that of a run."""
    path = Path(text.partition(".py:")[0] + ".py" if ".py:" in text else text).expanduser()
    is_task_folder = (path / "task.toml").is_file()
    try:
        named = is_named_object(installed_name(text))
    except BadArgument:
        raise BadArgument(f"--reference {text}: there is no such file, module or run; {WAYS}") from None
    if not (path.is_file() or is_task_folder or named):
        try:
            return Store().open_run(text).load().task
        except (StoreError, NotAccepted):
            raise BadArgument(f"--reference {text}: there is no such file or run; {WAYS}") from None
    own_sizes = is_task_folder or (".py:" not in text and not named)
    sizes = ({}, {}) if own_sizes else (dict(shapes), dict(numbers))
    request = Request(text, *sizes, allow_degenerate=True, fixed=("all",))
    while True:
        try:
            task = task_of(resolved(request))
            break
        except tasks.RefusedRequest as problem:
            given = problem.given.name if problem.given is not None and not problem.given.text else ""
            if given not in {*request.shapes, *request.numbers}:
                raise BadArgument(f"--reference {text}: {problem}") from None
        except BadArgument as problem:
            raise BadArgument(f"--reference {text}: {str(problem).removeprefix(f'{text}: ')}") from None
        # A parameter of the module: the kernel takes it too, and `forward` does not.
        shapes, numbers = (
            {name: one for name, one in given_.items() if name != given} for given_ in (request.shapes, request.numbers)
        )
        request = replace(request, shapes=shapes, numbers=numbers)
    if task is None:
        raise BadArgument(f"--reference {text}: {WAYS}")
    return task


_INDICES = (records.DType.I16, records.DType.I32, records.DType.I64)


def task_of_file(file: KernelFile, arguments: Mapping[str, ArgumentValue], gpu: records.GpuProfile) -> records.Task:
    """The task of a file without a reference; equal sizes are one dimension. Raises `BadArgument`, `DoesNotApply`."""
    op = file.plan.op
    evaluation = evaluate(file, arguments, gpu)
    results = {one.name: one.spec for one in evaluation.buffers if one.name in op.results}
    specs = [value for value in (*arguments.values(), *results.values()) if isinstance(value, records.TensorSpec)]
    sizes = dict.fromkeys(size for spec in specs for size in spec.shape)
    names = {size: f"size{number}" for number, size in enumerate(sizes)}
    # A size that is given as a number too would not follow where its dimension is made smaller.
    fixed = any(isinstance(value, int) and value in sizes for value in arguments.values())
    smallest = min((size for size in sizes if size), default=1)
    return records.Task(
        name=op.name,
        reference="",
        function=op.name,
        inputs=tuple(_input(one, arguments[one.name], names, smallest) for one in op.parameters),
        outputs=tuple(
            records.TaskOutput(name, results[name].dtype, tuple(names[size] for size in results[name].shape))
            for name in op.results
        ),
        dimensions=tuple(
            records.Dimension(name, size, multiple_of=max(size, 1) if fixed else 1) for size, name in names.items()
        ),
        gpu=gpu.name,
    )


def task_of_reference(
    reference: tuple[Path, str], arguments: Mapping[str, ArgumentValue], device: ChosenDevice
) -> records.Task:
    """The task of a function in a file, at these arguments. Raises `RefusedRequest`."""
    path, function = reference
    shapes, numbers = argument_words(arguments)
    options = tasks.TaskOptions(gpu=device.gpu, allow_degenerate=True, resolve_precision=precision_settler(device))
    try:
        task = tasks.open_task(f"{path}:{function}", shapes, numbers, {}, options)
    except tasks.RefusedRequest as refusal:
        if refusal.given is None or refusal.given.text:
            raise
        # A parameter of the kernel, which was not given by that option.
        found = f"the kernel file has the parameter {refusal.given.name}, and {refusal.found}"
        raise BadArgument(f"--reference {path}:{function}: {found}; give them the same names") from None
    assert task is not None  # it names a file that is there
    return task


def _input(parameter: Parameter, value: ArgumentValue, names: Mapping[int, str], smallest: int) -> records.TaskInput:
    if parameter.scalar is not None:
        if not isinstance(value, (bool, int, float)):
            raise BadArgument(f"{parameter.name} is a list of numbers; give --reference FILE.py:FUNCTION")
        return records.NumberInput(parameter.name, parameter.scalar, value)
    if not isinstance(value, records.TensorSpec):
        return records.TensorInput(parameter.name, records.DType.F32, (), optional=True)
    values: records.NormalValues | records.IntegerValues = records.NormalValues()
    if value.dtype in _INDICES:  # valid for every dimension
        values = records.IntegerValues(0, smallest)
    elif not value.dtype.is_float:
        lowest, highest = value.dtype.whole_numbers
        values = records.IntegerValues(lowest, highest + 1)
    dimensions = tuple(names[size] for size in value.shape)
    return records.TensorInput(parameter.name, value.dtype, dimensions, values, in_place=parameter.in_place)


def argument_words(arguments: Mapping[str, ArgumentValue]) -> tuple[dict[str, str], dict[str, str]]:
    """Tensors and numbers as `--shape` and `--set` take them: `4096x1024:bf16`, `1e-05`."""
    shapes = {name: spec_text(one) for name, one in arguments.items() if isinstance(one, records.TensorSpec)}
    return shapes, {name: str(one).lower() for name, one in arguments.items() if isinstance(one, (bool, int, float))}
