"""Random PyTorch functions, and what the playbook makes of each: a file whose plan holds, or a refusal in a sentence.

    python -m tests.playbook.random_functions [--count 1000] [--first 0] [--verify 0] [--loops]

A function is drawn step by step, and every step is run: what PyTorch refuses is drawn again. Inputs are of any dtype,
some lie in memory in another order of dimensions or with gaps. `--verify` puts every so many-th function's files before
the referee too; `--loops` asks for the loops' file alone.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import pytest
import torch
import torch.nn.functional as F
from tests.tasks.in_process import HereReference, JudgingReference, ask_here, probed

from tilewright.devices.child_device import EmulatedDevice
from tilewright.kernel_file import Evaluation
from tilewright.playbook.errors import precheck
from tilewright.playbook.file_text import with_least_sizes
from tilewright.playbook.tracing import trace
from tilewright.playbook.understanding import answer, any_graph
from tilewright.records import PROFILES, BadPlan, Case, Rejected, Task, TensorSpec
from tilewright.reference import ReferenceProblem
from tilewright.tasks import task_op_line
from tilewright.tasks.errors import RefusedRequest
from tilewright.verify import Referee, read_kernel
from tilewright.verify.candidate import Candidate, Times
from tilewright.verify.cases import plan_cases

_MOST_ELEMENTS = 1 << 16
_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
_DTYPES |= {"i32": torch.int32, "i64": torch.int64, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool}
_DTYPES |= {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
_MAIN = ("f32", "f32", "f32", "f32", "bf16", "f16", "f64")
_ODD = ("i32", "i8", "u8", "bool", "f64", "f8e4m3", "f8e5m2", "f16")
_SIZES = (1, 2, 3, 5, 8, 12, 16, 24, 32, 33, 64, 128)

# {a} and {b} are values drawn so far, {d} a dimension of {a}, {n} a small number, {f} a plain one, {i} an index tensor.
_POINTWISE = """
F.gelu({a});F.silu({a});F.relu({a});torch.sigmoid({a});torch.tanh({a});torch.exp({a} * 0.1);F.softplus({a})
F.mish({a});F.logsigmoid({a});F.hardsigmoid({a});F.hardswish({a});F.elu({a});F.leaky_relu({a}, {f});torch.abs({a})
-{a};{a} * {f};{a} + {f};{a} / {f};{a} ** 2;{a}.clamp(-{f}, {f});torch.sqrt({a}.abs() + {f});torch.sin({a})
{a}.float();{a}.bfloat16();{a}.half();({a} * 10).to(torch.int32);torch.round({a});{a} + {b};{a} - {b};{a} * {b}
{a} / ({b}.abs() + 1);torch.maximum({a}, {b});torch.minimum({a}, {b});torch.where({a} > {b}, {a}, {f})
torch.where({a} > 0, {a}, {b});torch.lerp({a}, {b}, 0.25);torch.clamp({a}, {b}, {b} + 1);{a} > {b}
{a}.masked_fill({a} > {f}, 0.0);torch.floor({a});torch.addcmul({a}, {a}, {b});torch.remainder({a}, {f})
torch.nan_to_num({a});torch.threshold({a}, {f}, 0.0)
"""
_ROWS = """
{a}.sum({d});{a}.mean({d}, keepdim=True);{a}.amax({d});{a}.amin({d}, keepdim=True);{a}.argmax({d});{a}.max({d}).values
torch.softmax({a}, {d});torch.log_softmax({a}, {d});torch.logsumexp({a}, {d});{a}.var({d}, unbiased=False)
{a}.norm(dim={d});F.layer_norm({a}, {a}.shape[-1:]);F.rms_norm({a}, {a}.shape[-1:]);F.normalize({a}, dim={d})
{a}.prod({d});{a}.sum();{a} - {a}.mean({d}, keepdim=True);{a} / ({a}.abs().amax({d}, keepdim=True) + 1)
{a}.std({d}, keepdim=True);({a} > 0).sum({d});({a} > 0).any({d});{a}.mean();torch.cumsum({a}, {d})
torch.cumprod({a}, {d});torch.topk({a}, {n}, -1).values;torch.topk({a}, {n}, -1).indices
"""
_MOVED = """
{a}.transpose(-1, -2);{a}.transpose(0, {d}).contiguous();{a}.reshape(-1);{a}.reshape({a}.shape[0], -1)
{a}.unsqueeze({d});{a}[..., 1:];{a}[..., :{a}.shape[-1] // 2];{a}[1:];{a}[..., ::2];{a}.flip({d})
torch.roll({a}, {n}, {d});{a}[0];{a}[..., 0];torch.cat([{a}, {a}], {d});torch.cat([{a}, {b}], -1)
torch.stack([{a}, {a} * {f}], {d});{a}.chunk(2, -1)[0];{a}.unbind(0)[0];F.pad({a}, ({n}, 0))
F.pad({a}, (1, {n}), value={f});torch.repeat_interleave({a}, 2, dim={d});{a}.repeat_interleave({n}, -1)
{a}.expand({n}, *{a}.shape);torch.tril({a});torch.triu({a}, {n});{a}.unfold(-1, {n}, 1);{a}.flatten(0, 1)
{a}.squeeze();F.glu({a}, -1);{a}.split({n}, -1)[0];torch.diagonal({a}, dim1=-2, dim2=-1)
{a} + torch.arange({a}.shape[-1]);{a}.mT;{a}.view(*{a}.shape[:-1], -1, 2).sum(-1);{a}.tile(2)
"""
_OTHERS = """
{a} @ {b};{a} @ {b}.transpose(-1, -2);F.linear({a}, {b});torch.matmul({a}.transpose(-1, -2), {b})
torch.outer({a}, {b});F.embedding({i}, {a});torch.index_select({a}, 0, {i})
torch.gather({a}, 0, {a}.argmax(0, keepdim=True));{a}[{i}];F.embedding({i}, {a}) * {f};F.max_pool2d({a}, 2)
F.avg_pool2d({a}, 2);F.max_pool1d({a}, 2);F.cross_entropy({a}, {i});F.mse_loss({a}, {b})
F.scaled_dot_product_attention({a}, {b}, {b});F.conv1d({a}, {b});F.conv2d({a}, {b});torch.bmm({a}, {b})
F.kl_div({a}, {b});F.smooth_l1_loss({a}, {b});torch.einsum('...i,...i->...', {a}, {b});F.pixel_shuffle({a}, 2)
F.group_norm({a}, 2);F.interpolate({a}, scale_factor=2);F.nll_loss({a}, {i})
torch.where(torch.tril(torch.ones_like({a})) > 0, {a}, -1e9)
"""
_ORDERED = """
{a}.sort({d}).values;{a}.sort({d}, descending=True).indices;torch.argsort({a}, {d});torch.cummax({a}, {d}).values
torch.logcumsumexp({a}, {d});torch.zeros_like({a}).scatter(-1, {a}.argsort(-1), {a})
torch.zeros_like({a}).index_add(0, {i}[:{a}.shape[0]], {a}[:{i}.shape[0]]);{a}.kthvalue(1, {d}).values
torch.zeros_like({a}).scatter_reduce(-1, {a}.argsort(-1), {a}, 'amax');{a}.index_put(({i},), {a}[{i}] * {f})
{a}.masked_fill(torch.triu(torch.ones({a}.shape[-2:], dtype=torch.bool), 1), float('-inf')).softmax(-1)
{a} - torch.tensor([{f}, 1.0, 2.0])[:1];F.one_hot({i}, {a}.shape[0]).float() @ {a};torch.cumsum({a}.softmax(-1), {d})
F.interpolate({a}, scale_factor=2.0, mode='bilinear');F.adaptive_avg_pool2d({a}, (3, 2));{a}.clone().mul_({f}).add_({b})
F.layer_norm({a} @ {a}.mT, ({a}.shape[-2],));F.scaled_dot_product_attention({a}, {a}, {a}, is_causal=True) + {a}
F.conv_transpose2d({a}, {b});F.avg_pool2d({a}, 3, 2, 1, ceil_mode=True, count_include_pad=False);{a} // {f}
(({a} * 20).to(torch.int8) & 15) << 2;({a} * 9).to(torch.int16).sum({d});F.pad({a}, (1, 2), mode='circular')
F.max_pool2d({a}, 2, return_indices=True)[1];torch.cdist({a}, {a});{a}.to(torch.float64).exp().sum({d})
"""
_STEPS = [
    (weight, [one for line in text.split("\n") for one in line.split(";") if one])
    for weight, text in ((5, _POINTWISE), (4, _ROWS), (4, _MOVED), (3, _OTHERS), (3, _ORDERED))
]
_SOURCE = "import torch\nimport torch.nn.functional as F\n\n\ndef {name}({names}):\n{lines}\n"


@dataclass(frozen=True)
class Drawn:
    name: str
    source: str
    shapes: dict[str, str]
    values: dict[str, str]
    numbers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    word: str  # written, refused, no task, traceback or illegal plan; verified or rejected
    said: str = ""


def draw(seed: int) -> Drawn:
    """A function of one to three tensors, in two to eight steps."""
    random = Random(seed)
    torch.manual_seed(seed)
    tensors, shapes, values = _inputs(random)
    inputs = list(tensors)
    lines: list[str] = []
    steps, tries = random.randint(2, 8), 0
    while len(lines) < steps and tries < 200:
        tries += 1
        text = _step(random, tensors)
        try:
            made = eval(text, {"torch": torch, "F": F}, tensors)
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, NameError):
            continue
        if isinstance(made, torch.Tensor) and 0 < made.numel() <= _MOST_ELEMENTS:
            name = f"t{len(lines)}"
            tensors[name] = made
            lines.append(f"    {name} = {text}")
    used = " ".join(lines)
    last = [f"t{number}" for number in range(len(lines))]
    unused = [name for name in last[:-1] if f"{name}." not in used and f"{name} " not in used and random.random() < 0.5]
    lines.append(f"    return {', '.join([*unused[:1], last[-1]])}")
    name = f"drawn_{seed}"
    return Drawn(name, _SOURCE.format(name=name, names=", ".join(inputs), lines="\n".join(lines)), shapes, values)


def _inputs(random: Random) -> tuple[dict[str, torch.Tensor], dict[str, str], dict[str, str]]:
    dtype = random.choice(_MAIN)
    rank = random.choice((1, 2, 2, 2, 3, 3, 4))
    main = tuple(random.choice(_SIZES[2 if rank > 3 else 4 :][:7]) for _ in range(rank))
    made = {"x": (main, dtype)}
    values = {}
    for name in "wv"[: random.choice((0, 1, 1, 2))]:
        shape = random.choice((main, main, main[-1:], (main[-1], random.choice(_SIZES)), (*main[:-1], 1), main[::-1]))
        made[name] = shape, random.choice((dtype, dtype, dtype, "f32", random.choice(_ODD)))
    shapes = {name: f"{'x'.join(map(str, shape))}:{kind}{_lain(random, shape)}" for name, (shape, kind) in made.items()}
    if random.random() < 0.3:
        shape = random.choice(((random.choice(_SIZES),), main[:1], main[:2]))
        shapes["i"] = f"{'x'.join(map(str, shape))}:{random.choice(('i64', 'i32'))}"
        values["i"] = f"integers:0:{main[0]}"
    return {name: _tensor(TensorSpec.parse(text), main[0]) for name, text in shapes.items()}, shapes, values


def _lain(random: Random, shape: tuple[int, ...]) -> str:
    """How a tensor lies in memory: mostly row by row."""
    if len(shape) < 2 or random.random() < 0.75:
        return ""
    order = random.sample(range(len(shape)), len(shape))
    return random.choice((f" order {' '.join(map(str, order))}", " strided"))


def _tensor(spec: TensorSpec, most: int) -> torch.Tensor:
    dtype = _DTYPES[spec.dtype.value]
    content = torch.randn(spec.shape) if dtype.is_floating_point else torch.randint(0, most, spec.shape)
    laid = torch.empty_strided(spec.shape, spec.stride, dtype=dtype)
    return laid.copy_(content.to(dtype))


def _step(random: Random, tensors: dict[str, torch.Tensor]) -> str:
    kind = random.choices([texts for _, texts in _STEPS], [weight for weight, _ in _STEPS])[0]
    floats = [name for name, one in tensors.items() if name != "i"]
    # What came last is used most, so that steps follow from each other.
    a, b = floats[-1] if random.random() < 0.7 else random.choice(floats), random.choice(floats)
    dim = random.choice((-1, -1, -1, 0, tensors[a].ndim - 2))
    number = random.choice((1, 2, 3))
    return random.choice(kind).format(a=a, b=b, d=dim, n=number, f=random.choice((0.5, 2.0, 3.0, 0.1)), i="i")


# -- what becomes of them --


def outcome(drawn: Drawn, referee_of: EmulatedDevice | None = None, loops: bool = False) -> Outcome:
    """What the playbook makes of the function; with a device, what the referee says of its files."""
    try:
        precheck(drawn.source, drawn.name)
        task, reference = probed(drawn.source, drawn.name, drawn.shapes, drawn.numbers, drawn.values)
    except (RefusedRequest, ReferenceProblem) as problem:
        return Outcome("no task", str(problem))
    except Exception:
        return Outcome("traceback", traceback.format_exc(limit=-4))
    return _written(task, reference, referee_of, loops)


def _written(task: Task, reference: HereReference, device: EmulatedDevice | None, loops: bool) -> Outcome:
    def ask(request: object) -> object:
        try:
            return trace(reference.function, request)  # type: ignore[arg-type]
        except (RuntimeError, ValueError) as error:
            raise ReferenceProblem(str(error)) from error

    try:
        found = (any_graph if loops else answer)(task, ask)  # type: ignore[arg-type]
        steps = {one.id: one for step in found.every for one in (step, step.safer, step.polished) if one is not None}
        texts = {name: with_least_sizes(step.write(task_op_line(task)), task) for name, step in steps.items()}
    except RefusedRequest as problem:
        return Outcome("refused", str(problem))
    except Exception:
        return Outcome("traceback", traceback.format_exc(limit=-4))
    for name, text in texts.items():
        problem = _problem(text, task)
        if problem:
            return Outcome("illegal plan", f"{name}: {problem}")
    return _verified(task, texts, device) if device is not None else Outcome("written", ", ".join(texts))


def _problem(text: str, task: Task) -> str:
    """What is wrong with the plan, at the own sizes or at those of a case."""
    file = read_kernel(text, task)
    if isinstance(file, BadPlan):
        return str(file.problems[0])
    candidate = Candidate(file, task, None, Times())
    for case in (Case(task.sizes, 1), *plan_cases(task)):
        found = candidate.evaluate(case, PROFILES["H200"])
        if isinstance(found, BadPlan):
            return f"{case}: {found.problems[0]}"
        if case.sizes == task.sizes and not isinstance(found, Evaluation):
            return f"declines its own call: {found.problem}"
    return ""


def _verified(task: Task, texts: dict[str, str], device: EmulatedDevice) -> Outcome:
    with JudgingReference(task.reference, task.function) as reference:
        referee = Referee(task, reference, emulator=device)
        for name, text in texts.items():
            try:
                verdict = referee.judge(text)
            except ReferenceProblem as problem:
                return Outcome("no task", str(problem))
            if isinstance(verdict, Rejected):
                return Outcome("rejected", f"{name}: {verdict.evidence}"[:600])
    return Outcome("verified", ", ".join(texts))


def outcomes(seeds: Iterable[int], verify_every: int = 0, loops: bool = False) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch, EmulatedDevice(PROFILES["H200"]) as device:
        ask_here(patch)
        for seed in seeds:
            judged = device if verify_every and seed % verify_every == 0 else None
            found[seed] = outcome(draw(seed), judged, loops)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--verify", type=int, default=0, help="every so many-th is verified; 0: none")
    parser.add_argument(
        "--loops", action="store_true", help="the loops' file alone, whatever family takes the function"
    )
    options = parser.parse_args()
    found = outcomes(range(options.first, options.first + options.count), options.verify, options.loops)
    bad = {seed: one for seed, one in found.items() if one.word in ("traceback", "illegal plan", "rejected")}
    for seed, one in bad.items():
        print(f"-- {one.word}: {draw(seed).source}{draw(seed).shapes}\n{one.said}\n")
    print(dict(Counter(one.word for one in found.values()).most_common()))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
