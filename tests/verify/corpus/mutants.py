"""Mutants of honest kernels: each one token or statement off, the same ones every time.

    python -m tests.verify.corpus.mutants [--jobs 14] [--device emulator|gpu|both] [--only GLOB] [-o rows.jsonl]

A mutant that the compiler refuses says nothing and is left out; one whose PTX is the same as its original's, at the
task's own sizes and at small ones, is equivalent; `equivalent.jsonl` lists those that are so for another reason, which
it gives. All others must be rejected. The playbook's kernels for Hopper lose a fence, a wait, a commit, an arrival or a
predicate each.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.tasks.in_process import JudgingReference
from tests.verify.corpus.court import ACCEPTED, PROVISIONAL, REJECTED, Row
from tests.verify.corpus.entries import FOLDER, Entry, load, task_of
from tests.verify.corpus.run import Job, judge_jobs

from tilewright.kernel_file import Evaluation
from tilewright.playbook.tracing import trace
from tilewright.playbook.understanding import answer
from tilewright.records import PROFILES, BadPlan, Case, NotBuilt, Task
from tilewright.tasks import task_op_line
from tilewright.verify import read_kernel
from tilewright.verify.candidate import Candidate, Times
from tilewright.verify.cases import plan_cases

KERNELS = (
    "base_argmax",
    "base_conv2d",
    "base_cumsum",
    "base_embedding",
    "base_groupnorm",
    "base_matmul",
    "base_rmsnorm_bf16",
    "base_roll",
    "base_softmax",
    "attention_flash_two_keys",
    "avgpool3_clamped_window",
    "axpby_grid_stride_float4",
    "bias_act_flag_as_argument",
    "causal_softmax_front_only",
    "column_mean_split_rows",
    "count_above_by_ballot",
    "int8_matmul_dp4a",
    "layernorm_welford",
    "rope_sincosf",
    "total_last_block_cuda_sample",
    "transposed_add_tile",
    "unpack4_by_shifts",
)
# The playbook's, by the corpus's task and the structure.
HOPPER = {
    "hopper_matmul": ("matmul", "product-hopper-parts"),
    "hopper_matmul_bf16": ("matmul_bf16", "product-hopper"),
    "hopper_attention_bf16": ("attention_bf16", "attention-hopper"),
}
MOST = 12  # of one kernel
_SMALL_CASES = 3  # at which builds are compared, beside the own sizes
_REFUSED = ("BadPlan", "NotBuilt")
_PLACES = re.compile(r"(?m)^\s*(\.loc|//).*\n|// .*$|tilewright_[0-9a-f]{16}")  # and names made of a hash

_TOKEN = re.compile(
    r"//[^\n]*|#[^\n]*|\"[^\"]*\"|__syncthreads\(\);|[A-Za-z_]\w*|\d[\w.]*|<<=|>>=|[-+*/%&|^=<>!]=|&&|\|\||<<|>>|->|\+\+|--|."
)
_OPERATORS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "+", "/": "*",
    "%": "/", "&&": "||", "||": "&&", "+=": "=", "-=": "+=", "<<": ">>", ">>": "<<", "&": "|", "|": "&",
}  # fmt: skip
_NAMES = {
    "fmaxf": "fminf", "fminf": "fmaxf", "max": "min", "min": "max", "threadIdx.x": "threadIdx.y", "__expf": "expm1f",
    "exp2f": "__expf", "sqrtf": "rsqrtf", "rsqrtf": "sqrtf", "__shfl_xor_sync": "__shfl_up_sync",
}  # fmt: skip
_SUM = re.compile(r"\b(\w+) \+= ((?:(?!\+=)[^;{}])+);")
_ARGUMENTS = re.compile(r">>>\(([^()]*)\)")

_INNER = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"  # what a call is given
_ASYNCHRONOUS = {
    "fence": re.compile(rf"\b(?:show_to_tma|wgmma_fence){_INNER}(?=[;,])|asm volatile\(\"fence[^;]*;[^;]*(?=;)"),
    "wait": re.compile(rf"\b(?:barrier_wait|wgmma_wait<\w+>|wait_until_\w+(?:<[^>;]*>)?){_INNER}(?=[;,])"),
    "barrier": re.compile(rf"\b(?:consumer_sync|__syncthreads|__syncwarp){_INNER}(?=;)"),
    "commit": re.compile(rf"\bwgmma_commit{_INNER}(?=;)|cp\.async\.bulk\.commit_group(?=;)"),
    "arrival": re.compile(rf"\b(?:barrier_arrive\w*|release){_INNER}(?=[;,])"),
    "predicate": re.compile(rf"\bif (?!constexpr){_INNER}"),
}


@dataclass(frozen=True)
class Mutant:
    kernel: str
    number: int
    kind: str
    line: int
    change: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.kernel}@{self.number}"


def original(kernel: str) -> tuple[Entry, str]:
    """The entry of a kernel, and its text, which the playbook writes where it is one for Hopper."""
    if kernel not in HOPPER:
        entry = next(one for one in load() if one.name == kernel)
        return entry, entry.text
    name, structure = HOPPER[kernel]
    task = task_of(name)
    with JudgingReference(task.reference, task.function) as reference:
        found = answer(task, lambda request: trace(reference.function, request))
    step = next(one for one in found.every if one.id == structure)
    return Entry(kernel, name, "the playbook's"), step.write(task_op_line(task))


def mutants_of(kernel: str, text: str) -> tuple[Mutant, ...]:
    """At most `MOST`, of every kind in turn, spread over the file."""
    kinds: dict[str, list[tuple[int, int, str]]] = {}
    for kind, start, end, changed in (_asynchronous if kernel in HOPPER else _changes)(text):
        kinds.setdefault(kind, []).append((start, end, changed))
    for kind, found in kinds.items():
        found.sort(key=lambda one: zlib.crc32(f"{kind} {one}".encode()))
    picked: list[Mutant] = []
    while len(picked) < MOST and any(kinds.values()):
        for kind, found in kinds.items():
            if found and len(picked) < MOST:
                start, end, changed = found.pop()
                change = f"{text[start:end].strip()} -> {changed.strip() or 'nothing'}"
                line = text.count("\n", 0, start) + 1
                picked.append(Mutant(kernel, len(picked), kind, line, change, text[:start] + changed + text[end:]))
    return tuple(picked)


def _changes(text: str) -> Iterator[tuple[str, int, int, str]]:
    """Every change: its kind, what it replaces, and by what."""
    code = text.index("\n", text.rindex("//! ")) + 1
    for found in _TOKEN.finditer(text, code):
        token, start, end = found.group(), found.start(), found.end()
        if (token in _OPERATORS and token not in ("&", "*", "<", ">")) or _is_infix(text, start, end, token):
            yield (
                ("comparison" if token in ("<", "<=", ">", ">=", "==", "!=") else "operator"),
                start,
                end,
                _OPERATORS[token],
            )
        elif token in _NAMES:
            yield "function", start, end, _NAMES[token]
        elif token == "__syncthreads();":
            yield "barrier", start, end, ""
        elif re.fullmatch(r"\d+", token):
            yield "constant", start, end, str(int(token) + 1)
            if int(token) > 1:
                yield "constant", start, end, str(int(token) - 1)
        elif re.fullmatch(r"\d+\.\d*f", token):
            yield "constant", start, end, "1.f" if float(token[:-1]) == 0 else f"({token} * 1.01f)"
    for found in _SUM.finditer(text, code):
        name, term = found.groups()
        yield (
            "accumulator",
            found.start(),
            found.end(),
            f"{name} = decltype({name})(float(__half(float({name} + ({term})))));",
        )
    for found in _ARGUMENTS.finditer(text[:code]):
        names = [one.strip() for one in found.group(1).split(",")]
        for at in range(len(names) - 1):
            swapped = [*names[:at], names[at + 1], names[at], *names[at + 2 :]]
            yield "arguments", found.start(1), found.end(1), ", ".join(swapped)


def _asynchronous(text: str) -> Iterator[tuple[str, int, int, str]]:
    """What a kernel for Hopper does without; a predicate holds always."""
    code = text.index("__global__")
    for kind, pattern in _ASYNCHRONOUS.items():
        for found in pattern.finditer(text, 0 if kind == "commit" else code):
            yield kind, found.start(), found.end(), "if (true)" if kind == "predicate" else ""


def _is_infix(text: str, start: int, end: int, token: str) -> bool:
    """Of tokens that also mean a pointer or a template: whether blanks stand around it, as between operands."""
    return token in ("&", "*", "<", ">") and text[start - 1] == " " == text[end : end + 1]


@dataclass(frozen=True)
class Judged:
    """What became of the mutants: refused by plan or compiler, which says nothing; killed; the same program; alive; and
    those of kernels for Hopper that nobody vouches for without a GPU, as little as for some originals."""

    refused: tuple[Row, ...]
    killed: tuple[Row, ...]
    equivalent: tuple[Row, ...]
    alive: tuple[Row, ...]
    provisional: tuple[Row, ...]


def judge_mutants(kernels: Iterable[str], devices: Iterable[str], workers: int, say: Callable[[Row], None]) -> Judged:
    entries = {kernel: original(kernel) for kernel in kernels}
    made = {one.name: one for kernel in entries for one in mutants_of(kernel, entries[kernel][1])}
    known = {name: _as_entry(one, entries[one.kernel][0]) for name, one in made.items()}
    jobs = [Job(name, device, 0, one.text) for device in devices for name, one in made.items()]
    rows = judge_jobs(jobs, known, workers, say)
    refused = tuple(row for row in rows if row.reason in _REFUSED)
    killed = tuple(row for row in rows if row.verdict == REJECTED and row.reason not in _REFUSED)
    left = [row for row in rows if row.verdict != REJECTED]
    same = tuple(row for row in left if row.verdict == ACCEPTED and _is_equivalent(made[row.name], entries))
    open = tuple(row for row in left if row.verdict == PROVISIONAL and made[row.name].kernel in HOPPER)
    alive = tuple(row for row in left if row not in same and row not in open)
    return Judged(refused, killed, same, alive, open)


def _as_entry(mutant: Mutant, original: Entry) -> Entry:
    any_evidence = ("WrongValues", "Crashed", "Unstable", "Impossible", "Declined", *_REFUSED)
    return Entry(mutant.name, original.task, mutant.kind, f"line {mutant.line}: {mutant.change}", any_evidence)


# -- which are the same program --


def known_equivalent() -> dict[tuple[str, str, int], str]:
    """Mutants known to be right, by kernel, change and line, with the reason; line 0: wherever it is."""
    lines = (FOLDER / "equivalent.jsonl").read_text().splitlines()
    return {(one["kernel"], one["change"], one["line"]): one["why"] for one in map(json.loads, lines)}


def _is_equivalent(mutant: Mutant, entries: Mapping[str, tuple[Entry, str]]) -> bool:
    known = known_equivalent()
    if any((mutant.kernel, mutant.change, line) in known for line in (mutant.line, 0)):
        return True
    entry, text = entries[mutant.kernel]
    task = task_of(entry.task)
    return _built(task, mutant.text) == _built(task, text)


def _built(task: Task, text: str) -> list[str]:
    """What is launched at the own sizes and at small ones, and its code but for places in the source."""
    file = read_kernel(text, task)
    assert not isinstance(file, BadPlan)
    candidate = Candidate(file, task, None, Times())
    cases = (Case(task.sizes, 1), *plan_cases(task)[:_SMALL_CASES])
    evaluated = [candidate.evaluate(case, PROFILES["H200"]) for case in cases]
    plans = [one for one in evaluated if isinstance(one, Evaluation)]
    builds = candidate.build_all(plans)
    assert not isinstance(builds, NotBuilt)
    code = [_PLACES.sub("", one.ptx) if one else "" for one in builds]
    return [*(str(one.steps) for one in plans), *code]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", choices=("emulator", "gpu", "both"), default="emulator")
    parser.add_argument("--only", default="*", help="a pattern of kernels")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    kernels = [one for one in (*KERNELS, *HOPPER) if fnmatch.fnmatch(one, options.only)]
    devices = ("emulator", "gpu") if options.device == "both" else (options.device,)
    sink = options.output.open("w") if options.output else sys.stdout
    judged = judge_mutants(
        kernels, devices, options.jobs, lambda row: print(json.dumps(asdict(row)), file=sink, flush=True)
    )
    made = {one.name: one for kernel in kernels for one in mutants_of(kernel, original(kernel)[1])}
    for row in judged.alive:
        one = made[row.name]
        print(f"{row.verdict.upper()} {row.device} {one.name} line {one.line} [{one.kind}] {one.change}: {row.detail}")
    counts = f"{len(judged.killed)} killed, {len(judged.alive)} alive, {len(judged.equivalent)} the same program"
    counts += f", {len(judged.provisional)} provisional" if judged.provisional else ""
    print(f"{counts}, {len(judged.refused)} refused by plan or compiler; {time.monotonic() - began:.0f} s")
    return 1 if judged.alive else 0


if __name__ == "__main__":
    sys.exit(main())
