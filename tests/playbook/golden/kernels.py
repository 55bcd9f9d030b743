"""The kernel files that the playbook writes for a task, and hashes of their text and of their machine code."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.checkout import ROOT
from tests.playbook import test_class_losses, test_moves, test_pooling, test_scans, test_top_k
from tests.playbook.attention_cases import CASES
from tests.playbook.functions import FUNCTIONS, SIZES, task_of
from tests.playbook.golden.tasks import ASKED, Asked
from tests.playbook.placed import Placed
from tests.playbook.product_functions import BY_NAME
from tests.playbook.product_functions import SIZES as GEMM_SIZES
from tests.tasks.in_process import JudgingReference, probed

import tilewright
from tilewright.authors.playbook_author import kernel_text, with_variants
from tilewright.kernel_file import DoesNotApply, evaluate, parse
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.tracing import Traces
from tilewright.playbook.understanding import answer
from tilewright.records import PROFILES, Build, Task, from_json, to_json
from tilewright.tasks import TaskError, TaskOptions, task_from_kernelbench, task_from_specification
from tilewright.toolchain import build
from tilewright.words import read

GPUS = ("H200", "A100")
FOLDER = ROOT / "build" / "golden"
LEVELS = ("level1", "level2")
_SOURCE = Path(tilewright.__file__).parent
_READERS = ("tasks", "reference", "records")  # what makes a task of a source
_TRACE = "tilewright.playbook.tracing:trace"
_DIGITS = 12
_NOT_IN_THE_FILE = 8  # SHT_NOBITS
_CODE = (".text.", ".nv.constant3.", ".nv.constant4.", ".nv.shared.")

LIST = Path(__file__).parent / "kernels.txt"

Make = Callable[[], Task]
Key = tuple[str, str]  # task and structure


def further_tasks() -> dict[str, Make]:
    """Tasks that need no folder: at real sizes, from words, and those of the playbook's tests."""
    placed = (*CASES.values(), *test_moves.CASES, *test_pooling.CASES, *test_scans.CASES, *test_class_losses.CASES)
    named: dict[str, Make] = {f"asked/{one.name}": partial(_task_asked, one) for one in ASKED}
    everyday = (ROOT / "benchmarks" / "requests" / "everyday.txt").read_text().splitlines()
    named |= {f"words/{request.replace(' ', '_')}": partial(_task_in_words, request) for request in everyday}
    named |= {f"rows/{one.name}": partial(task_of, one, SIZES) for one in FUNCTIONS}
    named |= {f"gemms/{one.name}": partial(task_of, one, GEMM_SIZES) for one in BY_NAME.values()}
    named |= {f"placed/{one.name}": partial(_task_placed, one) for one in (*placed, *test_top_k.CASES)}
    return named


def kernelbench_tasks(folder: Path) -> dict[str, Make]:
    paths = sorted(path for level in LEVELS for path in (folder / level).glob("*.py"))
    return {f"{one.parent.name}/{one.stem}": partial(_task_of_problem, one) for one in paths}


def _kept(source: str, make: Make) -> Task:
    """Kept from call to call: finding out what a function's dimensions do takes seconds."""
    made_by = [one for part in _READERS for one in sorted((_SOURCE / part).rglob("*.py"))]
    digest = hashlib.sha256(b"".join([source.encode(), *(one.read_bytes() for one in made_by)])).hexdigest()
    kept = FOLDER / "tasks" / f"{digest}.json"
    if not kept.exists():
        task = make()
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(to_json(task)))
    return from_json(Task, json.loads(kept.read_text()))


def _task_of_problem(path: Path) -> Task:
    options = TaskOptions(allow_degenerate=True)
    return _kept(f"{path.name} {path.read_text()}", lambda: task_from_kernelbench(path, options))


def _task_asked(one: Asked) -> Task:
    return _kept(f"{one.source} {one.shapes}", lambda: probed(one.source, one.name, one.shapes)[0])


def _task_in_words(request: str) -> Task:
    read_as = read(request, {})
    options = TaskOptions(allow_degenerate=True)
    return _kept(f"{read_as.reference} {read_as.description}", lambda: task_from_specification(read_as, options))


def _task_placed(one: Placed) -> Task:
    return one.task


@dataclass(frozen=True)
class Written:
    """A kernel file of a task."""

    name: str
    structure: str
    text: str
    task: Task

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:_DIGITS]

    @property
    def key(self) -> Key:
        return self.name, self.structure


def written(name: str, make: Make) -> list[Written]:
    """Every file of a schedule for a task; those of the loops are not listed: all change together."""
    try:
        task = make()
        with JudgingReference(task.reference, task.function) as reference:
            found = answer(task, lambda request: reference.call(_TRACE, request, Traces))
    except (TaskError, NotSupported):
        return []
    steps = [step for one in (*found.structures, *found.every) for step in with_variants(one) if step.id[:5] != "loops"]
    texts = {one.id: kernel_text(one, task) for one in steps}
    return [Written(name, structure, text, task) for structure, text in texts.items()]


def code_of(one: Written, gpu: str) -> str:
    """The hash of what the kernels are compiled to at the task's sizes: instructions, constants, shared memory and
    registers, whatever the kernels are called and wherever their lines stand. "-" where the file does not apply."""
    try:
        request = evaluate(parse(one.text), one.task.arguments(), PROFILES[gpu]).build_request()
    except DoesNotApply:
        return "-"
    if request is None:
        return "-"
    built = build(request, isolated=False, cache=None)
    if not isinstance(built, Build):
        raise RuntimeError(f"{one.name} {one.structure} on {gpu} is not built: {built}")
    sections = _sections(built.cubin)
    digest = hashlib.sha256()
    for kernel in built.kernels:
        for prefix in _CODE:
            digest.update(sections.get(prefix + kernel.symbol, b""))
        digest.update(json.dumps([kernel.resources.registers, kernel.max_threads, kernel.cluster]).encode())
    return digest.hexdigest()[:_DIGITS]


def _sections(cubin: bytes) -> dict[str, bytes]:
    """The contents of a 64-bit ELF file's sections; of those that are not in the file, how large they are."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + entry_size * index) for index in range(count)]
    names_at, found = headers[names_index][4], {}
    for name_offset, kind, _, _, offset, size in headers:
        start = names_at + name_offset
        name = cubin[start : cubin.index(b"\0", start)].decode()
        found[name] = cubin[offset : offset + size] if kind != _NOT_IN_THE_FILE else str(size).encode()
    return found


# -- the list --


def read_list() -> dict[Key, list[str]]:
    """Hashes of text and of code on every GPU, by task and structure."""
    lines = (line.split() for line in LIST.read_text().splitlines() if line and not line.startswith("#"))
    return {(task, structure): hashes for task, structure, *hashes in lines}


def write_list(rows: Mapping[Key, list[str]]) -> None:
    head = f"# task, structure, hash of the text, of its code on {', '.join(GPUS)} (- does not apply, ? not built)\n"
    LIST.write_text(head + "".join(f"{' '.join((*key, *rows[key]))}\n" for key in sorted(rows)))
