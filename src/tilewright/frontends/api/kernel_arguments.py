"""GPUs by name, and the arguments of a kernel file: given by `--shape`, `--set` and `--fill`, or guessed."""

from __future__ import annotations

import itertools
import math
import re
import shlex
import string
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.kernel_file import (
    ArgumentValue,
    DoesNotApply,
    KernelFile,
    KernelFileError,
    Op,
    Parameter,
    evaluate,
    syntax,
)
from tilewright.records import (
    ARCHITECTURES,
    PROFILES,
    TYPICAL,
    Content,
    DType,
    GpuProfile,
    Integers,
    Normal,
    Part,
    ScalarType,
    TensorSpec,
    Uniform,
)
from tilewright.tasks.errors import BadArgument

# -- shapes that the `need` lines of a plan ask for --

_Term = tuple[str, int]  # a tensor and one of its dimensions


@dataclass
class NeededShapes:
    dtypes: dict[str, DType] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    _same: dict[_Term, _Term] = field(default_factory=dict)
    _numbers: dict[_Term, int] = field(default_factory=dict)

    def guess(self, names: Sequence[str], dtype: DType, shapes: Sequence[tuple[int, ...]]) -> list[TensorSpec]:
        """Specs that meet the needs; where nothing is needed, they have this dtype and sizes from `shapes`."""
        usual = {len(one): one for one in reversed(shapes)}  # of several the first
        made: dict[_Term, int] = {}
        specs = []
        for name in names:
            rank = self.ranks.get(name, 2)
            like = usual[rank] if rank in usual else (*usual[4], *usual[4][-1:] * (rank - 4))
            sizes = [made.setdefault(self._first((name, at)), like[at]) for at in range(rank)]
            sizes = [self._numbers.get(self._first((name, at)), size) for at, size in enumerate(sizes)]
            specs.append(TensorSpec.contiguous(self.dtypes.get(name, dtype), tuple(sizes)))
        return specs

    def words(self, names: Sequence[str]) -> str:
        """The options to give: `--shape x=AxBxCxD:f32 --shape weight=ExBx3x3:f32`; letters stand for sizes."""
        letters: dict[_Term, str] = {}
        unused = iter(string.ascii_uppercase)
        options = []
        for name in names:
            sizes = "ROWSxCOLS" if name not in self.ranks else ""
            for at in range(self.ranks.get(name, 0)):
                first = self._first((name, at))
                if first in self._numbers:
                    letters[first] = str(self._numbers[first])
                elif first not in letters:
                    letters[first] = next(unused, "N")
                sizes += f"{'x' if sizes else ''}{letters[first]}"
            dtype = self.dtypes.get(name)
            options.append(f"--shape {name}={sizes}:{dtype.value if dtype else 'DTYPE'}")
        return " ".join(options)

    def _first(self, term: _Term) -> _Term:
        """The dimension that represents all that equal this one."""
        while term in self._same:
            term = self._same[term]
        return term

    def set_equal(self, one: syntax.Expr, other: syntax.Expr) -> None:
        """Add what `one == other` says about a tensor."""
        match one, other:
            case syntax.Literal(), _ if not isinstance(other, syntax.Literal):
                self.set_equal(other, one)
            case syntax.Attribute(base=syntax.Name(id=name), name="dtype"), syntax.Literal(value=DType() as dtype):
                self.dtypes.setdefault(name, dtype)
            case syntax.Attribute(base=syntax.Name(id=name), name="ndim"), syntax.Literal(value=int() as rank):
                self.ranks.setdefault(name, rank)
            case _:
                self._set_sizes(_term(one), _term(other), other)

    def _set_sizes(self, one: _Term | None, other: _Term | None, value: syntax.Expr) -> None:
        if one is None:
            return
        one = self._first(one)
        if other is not None and self._first(other) != one:
            first = self._first(other)
            self._same[first] = one
            if first in self._numbers:
                self._numbers.setdefault(one, self._numbers[first])
        elif isinstance(value, syntax.Literal) and isinstance(value.value, int):
            self._numbers.setdefault(one, value.value)


def needed_shapes(file: KernelFile, given: Mapping[str, ArgumentValue]) -> NeededShapes:
    """The needs of a plan, together with the tensors that are given."""
    found = NeededShapes()
    for name, spec in given.items():
        if isinstance(spec, TensorSpec):
            found.dtypes[name], found.ranks[name] = spec.dtype, spec.ndim
            for at, size in enumerate(spec.shape):
                found._numbers[name, at] = size
    for directive in file.plan.directives:
        for part in syntax.conjuncts(directive.condition) if isinstance(directive, syntax.Need) else ():
            if isinstance(part, syntax.Compare) and part.operator == "==":
                found.set_equal(part.left, part.right)
    return found


def _term(node: syntax.Expr) -> _Term | None:
    match node:
        case syntax.Index(
            base=syntax.Attribute(base=syntax.Name(id=name), name="shape"), position=syntax.Literal(value=int() as at)
        ) if at >= 0:
            return name, at
    return None


GUESS_SECONDS = 2.0

Shapes = Sequence[tuple[int, ...]]

# Shapes that most kernels take, the most common first; all tensors get the same one first, then mixtures.
GUESSED_SHAPES: Shapes = ((512, 1024), (1024,), (1024, 1024), (8, 64, 1024), (8, 64, 32, 32), ())
# Shapes small enough to emulate; odd sizes come first, because they find faults that round ones hide.
SMALL_SHAPES: tuple[Shapes, ...] = (
    ((7, 203), (203,), (203, 203), (3, 7, 203), (2, 203, 3, 5), ()),
    ((7, 136), (136,), (136, 136), (3, 7, 136), (2, 136, 6, 4), ()),
    ((8, 256), (256,), (256, 256), (2, 4, 256), (2, 256, 8, 8), ()),
    ((16, 1024), (1024,), (1024, 1024), (2, 8, 1024), (2, 1024, 8, 8), ()),
)
_SIZE_NAME = re.compile(
    r"^(n|m|k|len|length|size|numel|count|total|elements|rows?|cols?|columns|width|height|batch(_?size)?|hidden(_?size)?)$"
    r"|^(n|num)_|_(n|size|len|length|count|numel)$"
)
GUESSED_DTYPES = (DType.F32, DType.BF16, DType.F16, DType.I64, DType.I32, DType.U8)


def named_gpu(text: str) -> GpuProfile:
    """A known GPU by its name or its architecture: `H200`, `rtx4090`, `sm_90a`, `sm_90`."""
    plain = text.lower().replace(" ", "")
    for full in (plain, f"{plain}a"):  # sm_90 is built as sm_90a
        if full in TYPICAL:
            return TYPICAL[full]
    for name, profile in PROFILES.items():
        if name.lower().replace(" ", "") == plain:
            return profile
    raise BadArgument(f"{text} is no GPU known here; write one of {', '.join((*PROFILES, *ARCHITECTURES))}")


def choose_profiles(archs: Sequence[str], gpus: Sequence[str]) -> list[GpuProfile]:
    """The named architectures and GPUs; the H200 when none is named."""
    return list(dict.fromkeys(map(named_gpu, (*archs, *gpus)))) or [PROFILES["H200"]]


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """`NAME=VALUE`, repeated, as a dictionary."""
    made: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name or not value.strip():
            example = text.strip() if text.strip()[:1].isdigit() and not equals else "VALUE"
            raise BadArgument(f"{option} {text}: write {option} NAME={example}")
        if name in made:
            raise BadArgument(f"{option} {text}: {name} is given twice")
        made[name] = value.strip()
    return made


def spec_text(spec: TensorSpec) -> str:
    """`4096x1024:bf16`, and how it lies in memory where that is not row by row."""
    order = f" order {' '.join(map(str, spec.order))}" if spec.order else ""
    strided = "" if spec.is_dense else " strided"
    return f"{'x'.join(map(str, spec.shape))}:{spec.dtype.value}{order}{strided}"


def option_words(arguments: Mapping[str, ArgumentValue]) -> list[str]:
    """`--shape x=4096x1024:bf16`, `--set eps=1e-05`: arguments as a command takes them."""
    given = {name: spec_text(one) for name, one in arguments.items() if isinstance(one, TensorSpec)}
    shapes = [
        f"--shape {shlex.quote(f'{name}={text}') if ' ' in text else f'{name}={text}'}" for name, text in given.items()
    ]
    numbers = {name: one for name, one in arguments.items() if not (one is None or isinstance(one, TensorSpec))}
    texts = {name: ",".join(map(str, one if isinstance(one, tuple) else (one,))) for name, one in numbers.items()}
    return shapes + [f"--set {name}={text.lower()}" for name, text in texts.items()]


def parse_arguments(op: Op, shapes: Sequence[str], scalars: Sequence[str]) -> dict[str, ArgumentValue]:
    """The values of the options, checked against the op's parameters."""
    values: dict[str, ArgumentValue] = {}
    parameters = {parameter.name: parameter for parameter in op.parameters}
    for option, other, texts in (("--shape", "--set", shapes), ("--set", "--shape", scalars)):
        for name, value in pairs(option, texts).items():
            if (parameter := parameters.get(name)) is None:
                known = ", ".join(parameters) or "none"
                raise BadArgument(f"{option} {name}: write one of {op.name}'s parameters: {known}")
            if (parameter.scalar is None) != (option == "--shape"):
                raise BadArgument(f"{option} {name}={value}: {name} is given with {other}")
            try:
                values[name] = TensorSpec.parse(value) if parameter.scalar is None else parse_scalar(parameter, value)
            except ValueError as error:
                raise BadArgument(f"{option} {name}={value}: {error}") from None
    return values


def parse_scalar(parameter: Parameter, text: str) -> ArgumentValue:
    """`2`, `1e-5`, `true`, `none`, or `1,2` for a list."""
    if parameter.optional and text.strip() == "none":
        return None
    if not parameter.is_list:
        return _number(parameter, text)
    numbers = tuple(_number(parameter, item) for item in text.split(",") if item.strip())
    if parameter.length is not None and len(numbers) != parameter.length:
        raise ValueError(f"{parameter.name} takes {parameter.length} numbers, found {len(numbers)}")
    return numbers


def _number(parameter: Parameter, text: str) -> int | float | bool:
    text = text.strip().lower()
    try:
        if parameter.scalar is ScalarType.BOOL:
            return {"true": True, "false": False}[text]
        return int(text) if parameter.scalar is ScalarType.INT else float(text)
    except (KeyError, ValueError):
        assert parameter.scalar is not None
        such_as = {ScalarType.BOOL: "true or false", ScalarType.INT: "2", ScalarType.FLOAT: "1e-5"}[parameter.scalar]
        raise ValueError(f"{text!r} is not {parameter.scalar.value}; write {such_as}") from None


def parse_contents(op: Op, fills: Sequence[str]) -> dict[str, Content]:
    """`x=normal`, `x=uniform:0:1`, `index=integers:0:100`: the contents of tensors."""
    contents: dict[str, Content] = {}
    tensors = [one.name for one in op.tensors]
    for seed, (name, value) in enumerate(pairs("--fill", fills).items()):
        if name not in tensors:
            raise BadArgument(f"--fill {name}: write one of {op.name}'s tensors: {', '.join(tensors) or 'none'}")
        kind, *numbers = value.split(":")
        try:
            contents[name] = _content(kind, numbers, 1000 + seed)
        except (ValueError, TypeError):
            raise BadArgument(
                f"--fill {name}={value}: write normal, normal:MEAN:DEVIATION, uniform:LOW:HIGH or integers:LOW:HIGH; "
                "normal and uniform may end with :upper or :lower, for triangles"
            ) from None
    return contents


def _content(kind: str, words: Sequence[str], seed: int) -> Content:
    part = Part(words[-1]) if words and words[-1] in (Part.UPPER.value, Part.LOWER.value) else Part.WHOLE
    numbers = words if part is Part.WHOLE else words[:-1]
    if kind in ("normal", "uniform") and len(numbers) <= 2:
        first, second = (*map(float, numbers), *(0.0, 1.0)[len(numbers) :])
        return (Normal if kind == "normal" else Uniform)(seed, first, second, part)
    if kind == "integers":
        low, high = map(int, words)
        return Integers(seed, low, high)
    raise ValueError(kind)


def complete_arguments(
    file: KernelFile, given: Mapping[str, ArgumentValue], gpu: GpuProfile, guesses: Sequence[Shapes] = (GUESSED_SHAPES,)
) -> tuple[dict[str, ArgumentValue], bool]:
    """The given arguments with shapes guessed for the others from a list of `guesses`, and whether one was guessed."""
    wanted = [p for p in file.plan.op.tensors if not p.optional and p.name not in given]
    base = {p.name: given.get(p.name, _default(p)) for p in file.plan.op.parameters}
    if not wanted:
        return base, False
    deadline = time.thread_time() + GUESS_SECONDS
    reason = ""
    needed, names = needed_shapes(file, given), [p.name for p in wanted]
    ways = itertools.product(GUESSED_DTYPES, guesses) if all(name in needed.ranks for name in names) else ()
    sized = _size_names(file.plan.op, given)
    is_flat = len(sized) == 1 and len(names) == len(file.plan.op.tensors)
    lengths = [math.prod(shapes[0]) for shapes in guesses] if is_flat else []
    contiguous = itertools.starmap(TensorSpec.contiguous, itertools.product(GUESSED_DTYPES, ((n,) for n in lengths)))
    flat = ([spec] * len(names) for spec in contiguous)
    as_needed = (needed.guess(names, dtype, shapes) for dtype, shapes in ways)
    for specs in itertools.chain(as_needed, flat, _mixtures(len(wanted), guesses)):
        plain = {**base, **{p.name: spec for p, spec in zip(wanted, specs, strict=True)}}
        sizes = _sizes(sized, plain)
        for candidate in ({**plain, **sizes}, plain) if sizes else (plain,):
            try:
                evaluate(file, candidate, gpu)
                return candidate, True
            except DoesNotApply as refusal:
                reason = reason or str(refusal)
            except KernelFileError:
                pass
        if time.thread_time() > deadline:
            break
    raise BadArgument(
        f"{file.name}: no shape tried fits its needs on {gpu.name} ({reason}); give {needed.words(names)}"
    )


def _size_names(op: Op, given: Mapping[str, ArgumentValue]) -> list[str]:
    """Numbers that nobody gave and whose names say that they are sizes."""
    names = [
        one.name
        for one in op.parameters
        if one.scalar is ScalarType.INT and not (one.has_default or one.optional or one.is_list)
        if one.name not in given and _SIZE_NAME.search(one.name.lower())
    ]
    return [] if names == ["k"] else names  # how many of the largest


def _sizes(names: Sequence[str], arguments: Mapping[str, ArgumentValue]) -> dict[str, ArgumentValue]:
    """Sizes as the tensors have them; 1, as for other numbers, would be work for one thread."""
    shapes = [one.shape for one in arguments.values() if isinstance(one, TensorSpec) and one.numel]
    if not names or not shapes:
        return {}
    if len(names) == len(shapes[0]):
        return dict(zip(names, shapes[0], strict=True))
    if len(names) == 1:
        return {names[0]: min(map(math.prod, shapes))}
    return dict.fromkeys(names, min(size for shape in shapes for size in shape or (1,)))


def _default(parameter: Parameter) -> ArgumentValue:
    if parameter.has_default:
        return parameter.default
    if parameter.optional or parameter.scalar is None:
        return None
    one: dict[ScalarType, int | float | bool] = {ScalarType.INT: 1, ScalarType.FLOAT: 1e-5, ScalarType.BOOL: False}
    number = one[parameter.scalar]
    return (number,) * (parameter.length or 1) if parameter.is_list else number


def _mixtures(count: int, guesses: Sequence[Shapes]) -> Iterator[tuple[TensorSpec, ...]]:
    """Specs for `count` tensors over all shapes: first with one dtype, then with one tensor of another dtype."""
    patterns = [(dtype,) * count for dtype in GUESSED_DTYPES]
    for common, other, odd in itertools.product(GUESSED_DTYPES[:3], GUESSED_DTYPES, range(count)):
        if common is not other and count > 1:
            patterns.append((common,) * odd + (other,) + (common,) * (count - odd - 1))
    for dtypes, options in itertools.product(patterns, guesses):
        for shapes in _near_uniform(options, count):
            yield tuple(map(TensorSpec.contiguous, dtypes, shapes))


def _near_uniform(options: Shapes, count: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every tuple of shapes: those whose first tensor has two or more dimensions first, then by how few differ."""
    if count > 4:  # too many mixtures to try all
        return ((option,) * count for option in options)
    mixtures = itertools.product(options, repeat=count)
    return iter(sorted(mixtures, key=lambda mixture: (len(mixture[0]) < 2, len(set(mixture)))))
