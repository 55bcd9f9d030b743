"""The common end of every way to a task: probe the reference, name what was found, lint."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.kernel_file import op_of_task, print_op
from tilewright.records import (
    PROFILES,
    Dimension,
    Goal,
    IndexValues,
    IntegerValues,
    Kind,
    NumberInput,
    Origin,
    Precision,
    Task,
    TaskInput,
    TaskOutput,
    TensorInput,
    following,
)
from tilewright.reference import Reference, ReferenceProblem
from tilewright.tasks.dimension_names import ONE, dimension_names, following_names, output_names
from tilewright.tasks.errors import Remedy, RemedyKind, TaskError
from tilewright.tasks.own_precision import Settle, may_convolve, settled_by_channels
from tilewright.tasks.questions import (
    ANSWER_SECONDS,
    BOUND,
    PROBE,
    BoundAnswer,
    LintAnswer,
    ProbeAnswer,
    ProbeRequest,
    examine,
    finding,
)

# -- the kind of workload a reference is, from the names its source uses: --


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Looked for in this order; a product with an epilogue is a product, attention is more than its products and softmax.
# Functions and modules are known by their last name in lower case.
_NAMES: tuple[tuple[Kind, frozenset[str]], ...] = (
    (
        Kind.ATTENTION,
        _names("""
        scaled_dot_product_attention multi_head_attention_forward multiheadattention transformer
        transformerencoder transformerencoderlayer transformerdecoder transformerdecoderlayer
    """),
    ),
    (
        Kind.CONVOLUTION,
        _names("""
        conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convtranspose1d convtranspose2d
        convtranspose3d
    """),
    ),
    (
        Kind.MATMUL,
        _names("""
        matmul mm bmm mv dot addmm addmv addbmm baddbmm linear bilinear einsum tensordot outer inner
        chain_matmul multi_dot lstm gru rnn lstmcell grucell rnncell
    """),
    ),
    (
        Kind.LOSS,
        _names("""
        cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy
        binary_cross_entropy_with_logits hinge_embedding_loss cosine_embedding_loss triplet_margin_loss
        crossentropyloss nllloss mseloss l1loss smoothl1loss huberloss kldivloss bceloss bcewithlogitsloss
        hingeembeddingloss cosineembeddingloss tripletmarginloss margin_ranking_loss
    """),
    ),
    (Kind.SCAN, _names("cumsum cumprod cummax cummin logcumsumexp cumulative_trapezoid associative_scan")),
    (
        Kind.POOLING,
        frozenset(
            f"{adaptive}{kind}{bar}pool{n}d"
            for adaptive in ("", "adaptive_", "adaptive")
            for kind in ("max", "avg", "lp")
            for bar in ("_", "")
            for n in (1, 2, 3)
        ),
    ),
    (
        Kind.NORMALISATION,
        _names("""
        layer_norm rms_norm batch_norm group_norm instance_norm local_response_norm normalize layernorm rmsnorm
        batchnorm1d batchnorm2d batchnorm3d groupnorm instancenorm1d instancenorm2d instancenorm3d var var_mean
        std std_mean
    """),
    ),
    (Kind.SOFTMAX, _names("softmax log_softmax logsumexp softmin logsoftmax gumbel_softmax")),
    (
        Kind.GATHER,
        _names("""
        gather scatter scatter_ scatter_add scatter_add_ scatter_reduce index_select index_add index_add_
        index_copy take take_along_dim embedding embedding_bag embeddingbag masked_select index_put index_put_
        bincount
    """),
    ),
    (
        Kind.REDUCTION,
        _names("""
        sum mean prod amax amin max min argmax argmin topk sort norm nansum nanmean median all any mode
        count_nonzero cosine_similarity pairwise_distance vector_norm frobenius_norm aminmax kthvalue
    """),
    ),
)
_POINTWISE = _names("""
    relu gelu silu sigmoid tanh exp log sqrt rsqrt abs clamp where pow add mul sub div neg sin cos leaky_relu elu
    selu softplus softsign hardtanh hardswish hardsigmoid relu6 mish erf erfc square reciprocal sign round floor
    ceil leakyrelu hardshrink softshrink celu threshold logsigmoid prelu glu lerp addcmul addcdiv clone to float
    half bfloat16 add_ mul_ sub_ div_ copy_ relu_ cat stack chunk split roll flip triu tril view reshape transpose
    permute t contiguous unsqueeze expand repeat_interleave repeat maximum minimum nan_to_num logical_and logical_or
    logical_not isnan bitwise_and bitwise_or bitwise_xor expm1 log1p log2 exp2 atan asin acos atan2
""")
_BATCH_NORMS = _names("batch_norm batchnorm1d batchnorm2d batchnorm3d")
_KEPT = "keepdim"  # a reduction that keeps its dimension is put back onto what it reduced


def classify(task: Task) -> Kind:
    """The kind of the task's reference; `Kind.OTHER` where its names say nothing."""
    kind = kind_of(task.reference, task.function)
    if kind in (Kind.OTHER, Kind.POINTWISE) and any(isinstance(one.values, IndexValues) for one in task.tensors):
        return Kind.GATHER
    return kind


def kind_of(source: str, function: str) -> Kind:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return Kind.OTHER
    names, operators = _used(tree, function)
    found = _kinds(names, operators)
    weighted = {Kind.SOFTMAX, Kind.MATMUL} <= {*found} and _products(tree) > 1
    if weighted and not names & _BATCH_NORMS:  # between a product and its softmax attention has none
        return Kind.ATTENTION
    if not {Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION, Kind.LOSS} & {*found}:
        if found[:1] == [Kind.REDUCTION] and _has_targets(tree, function):
            return Kind.LOSS
        if found[:1] == [Kind.REDUCTION] and _is_softmax_by_hand(names, operators):
            return Kind.SOFTMAX
        if _is_norm_by_hand(names, operators):
            return Kind.NORMALISATION
    if found:
        return found[0]
    if names & _POINTWISE or operators:
        return Kind.POINTWISE
    return Kind.OTHER


def called_names(source: str, function: str) -> frozenset[str]:
    """The last names, in lower case, of what the function calls and the source does not define itself."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return frozenset()
    own = {node.name.lower() for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return frozenset(_used(tree, function)[0] - own)


def _kinds(names: set[str], operators: set[type]) -> list[Kind]:
    found = [kind for kind, known in _NAMES if names & known]
    if ast.MatMult in operators and Kind.MATMUL not in found:
        before = {Kind.ATTENTION, Kind.CONVOLUTION}
        found.insert(sum(kind in before for kind in found), Kind.MATMUL)
    return found


def _has_targets(tree: ast.Module, function: str) -> bool:
    """Whether the function compares with what it is told is right."""
    taken = [node.args.args for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    return any(one.arg in ("target", "targets", "label", "labels") for one in itertools.chain(*taken))


def _is_softmax_by_hand(names: set[str], operators: set[type]) -> bool:
    """`e / e.sum(-1, keepdim=True)` of `e = exp(x - x.amax(-1, keepdim=True))`."""
    return {"exp", "sum", _KEPT} <= names and ast.Div in operators


def _is_norm_by_hand(names: set[str], operators: set[type]) -> bool:
    """`x * rsqrt(x.pow(2).mean(-1) + eps)`, with a difference from the mean, or `x / x.norm()`."""
    if ast.Div in operators and names & {"norm", "vector_norm", _KEPT}:
        return True
    return bool(names & {"rsqrt", "sqrt"}) and bool(names & {"mean", "norm", "sum"}) and "std" not in names


def _products(tree: ast.Module) -> int:
    calls = sum(
        isinstance(node, ast.Call) and _last_name(node.func) in {"matmul", "bmm", "einsum", "mm"}
        for node in ast.walk(tree)
    )
    return calls + sum(isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) for node in ast.walk(tree))


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr.lower()
    return node.id.lower() if isinstance(node, ast.Name) else ""


def _used(tree: ast.Module, function: str) -> tuple[set[str], set[type]]:
    """Names called, and arithmetic operators used, in the function and in what of the file it reaches."""
    bodies: dict[str, ast.AST] = {
        node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    constants = {
        target.id: node
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    pending, seen = [function], set()
    names: set[str] = set()
    operators: set[type] = set()
    while pending:
        name = pending.pop()
        body = bodies.get(name) or constants.get(name)
        if name in seen or body is None:
            continue
        seen.add(name)
        for node in ast.walk(body):
            if isinstance(node, ast.Name):
                pending.append(node.id)
            if isinstance(node, ast.Call):
                names.add(_last_name(node.func))
                names |= {one.arg for one in node.keywords if one.arg == _KEPT}
            if isinstance(node, (ast.BinOp, ast.AugAssign)) or (isinstance(node, ast.UnaryOp) and _is_minus(node)):
                operators.add(type(node.op))
    return names, operators


def _is_minus(node: ast.UnaryOp) -> bool:
    return isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant)


_OTHER_VALUES = "normal:0:1"
_LARGER_VALUES = "normal:0:8"
_SOME_SIZE = 64  # in place of none


Foresee = Callable[[str, str], None]  # of a source and its function, before anything is run; it may refuse them


def _foreseen(source: str, function: str) -> None: ...


@dataclass(frozen=True)
class TaskOptions:
    """What a person may ask of a task beside what it computes."""

    gpu: str = "H200"
    precision: Precision | None = None  # None: as PyTorch by default, which `settle` finds out
    goal: Goal = Goal.THROUGHPUT
    allow_library: bool = False
    fixed: tuple[str, ...] = ()  # names of dimensions that must not vary
    fixed_all: bool = False
    allow_degenerate: bool = False
    foresee: Foresee = _foreseen
    settle: Settle = settled_by_channels

    def __post_init__(self) -> None:
        if self.gpu not in PROFILES:
            raise TaskError(f"no known GPU is called {self.gpu!r}; write one of {', '.join(PROFILES)}")


@dataclass(frozen=True)
class Draft:
    """A reference and its inputs at one size each: what is known before anything was run."""

    name: str
    source: str
    function: str
    inputs: tuple[TaskInput, ...]
    dimensions: tuple[Dimension, ...]
    unsaid: frozenset[str]  # tensors whose values nobody said
    origin: Origin
    results: tuple[str, ...] = ()  # names, where they are known
    assumptions: tuple[str, ...] = ()
    named: bool = False  # a person gave the dimensions; else there is one for each size, called after it

    @property
    def tensors(self) -> tuple[TensorInput, ...]:
        """Those that the reference is called with."""
        return tuple(one for one in self.inputs if isinstance(one, TensorInput) and not one.optional)

    @property
    def numbers(self) -> tuple[NumberInput, ...]:
        return tuple(one for one in self.inputs if isinstance(one, NumberInput))


def axes_of(shape: Sequence[int], dimensions: dict[str, Dimension]) -> tuple[str, ...]:
    """A dimension for every size, called after it and kept in `dimensions`: those of one size are one at first."""
    names = tuple(ONE if size == 1 else f"d{size}" for size in shape)
    dimensions.update((name, Dimension(name, size)) for name, size in zip(names, shape, strict=True))
    return names


def make_task(draft: Draft, options: TaskOptions) -> Task:
    """The task, probed and linted. Raises `TaskError`, also where the reference is at fault."""
    with Reference(draft.source, draft.function) as reference:
        try:
            task = probe_task(draft, options, reference)
            return linted(task, options, reference)
        except ReferenceProblem as problem:
            raise TaskError(str(problem)) from problem


def probe_task(draft: Draft, options: TaskOptions, reference: Reference) -> Task:
    """The task without the lint: outputs, and which dimensions vary, from calling the reference."""
    options.foresee(draft.source, draft.function)
    answer = _probed(draft, options, reference)
    taken = [one.name for one in draft.inputs]
    results = output_names(len(answer.outputs), draft.results, taken)
    avoid, kind = [*taken, *results], kind_of(draft.source, draft.function)
    if draft.named:
        names = {one.name: one.name for one in draft.dimensions}
        names |= following_names(answer, results, kind, names, avoid)
    else:
        names = dimension_names(answer, results, kind, avoid)
    return _assemble(draft, answer, names, results, options)


def bounded_task(draft: Draft, outputs: tuple[TaskOutput, ...], options: TaskOptions, reference: Reference) -> Task:
    """The task as it was described, bounded where the reference does something else beyond."""
    request = ProbeRequest(draft.tensors, (), draft.numbers, draft.dimensions, unlink=False)
    try:
        answer: BoundAnswer = reference.call(BOUND, request, BoundAnswer, ANSWER_SECONDS)
    except ReferenceProblem as problem:  # which says more of the sizes here than of the task
        answer = BoundAnswer((), (), (f"what the reference branches on was not looked for: {problem}",))
    found = {one.name: one for one in answer.dimensions}
    numbers = {one.name: one for one in answer.numbers}
    inputs = tuple(numbers.get(one.name, one) if isinstance(one, NumberInput) else one for one in draft.inputs)
    dimensions = tuple(_bounded(one, found.get(one.name, one)) for one in draft.dimensions)
    names = {one.name: one.name for one in draft.dimensions}
    notes = tuple(note for one in answer.assumptions if (note := _spelled(one, names)) not in draft.assumptions)
    return build_task(draft, inputs, outputs, dimensions, options, notes)


def _bounded(one: Dimension, found: Dimension) -> Dimension:
    if one.formula is not None:
        return one
    varies = one.varies and (found.varies or not found.branches)
    bounded = replace(one, varies=varies, at_most=found.at_most, branches=found.branches)
    return replace(bounded, at_least=found.at_least, unless=found.unless)


def _probed(draft: Draft, options: TaskOptions, reference: Reference) -> ProbeAnswer:
    dimensions = {one.name: one for one in draft.dimensions}
    unsaid = draft.unsaid
    if not draft.named:  # those of inputs that were dropped since are left out
        dimensions = {name: dimensions[name] for one in draft.tensors for name in one.dimensions}
        # What is said to index a dimension means something only once dimensions have names.
        unsaid |= {one.name for one in draft.tensors if isinstance(one.values, IndexValues)}
    fixed = options.fixed if draft.named else ()
    request = ProbeRequest(
        draft.tensors,
        tuple(unsaid),
        draft.numbers,
        tuple(
            replace(one, varies=one.varies and not options.fixed_all and one.name not in fixed)
            for one in dimensions.values()
        ),
        unlink=not draft.named and not options.fixed_all,
    )
    answer: ProbeAnswer = reference.call(PROBE, request, ProbeAnswer, ANSWER_SECONDS)
    return answer


def _assemble(
    draft: Draft, answer: ProbeAnswer, names: Mapping[str, str], results: Sequence[str], options: TaskOptions
) -> Task:
    """A task from what probing found, under the names given to its labels."""
    found = {one.name: one for one in answer.dimensions}
    met = () if draft.named else (label for one in answer.tensors for label in one.dimensions)
    order = dict.fromkeys([*met, *(label for label in (names if draft.named else found) if label in names)])
    probed: dict[str, TaskInput] = {one.name: _renamed(one, names) for one in answer.tensors}
    probed |= {one.name: one for one in answer.numbers}
    inputs: list[TaskInput] = []
    for one in draft.inputs:
        made = probed.get(one.name, one)
        if isinstance(one, TensorInput) and isinstance(made, TensorInput) and not draft.named:
            made = replace(made, values=one.values) if isinstance(one.values, IndexValues) else made
        inputs.append(made)
    outputs = [
        TaskOutput(name, one.dtype, tuple(names[size] if isinstance(size, str) else size for size in one.shape))
        for name, one in zip(results, answer.outputs, strict=True)
    ]
    dimensions = tuple(_renamed_dimension(found[label], names) for label in order if label in found)
    notes = tuple(_spelled(note, names) for note in answer.assumptions)
    return build_task(draft, tuple(inputs), tuple(outputs), dimensions, options, notes)


def build_task(
    draft: Draft,
    inputs: tuple[TaskInput, ...],
    outputs: tuple[TaskOutput, ...],
    dimensions: tuple[Dimension, ...],
    options: TaskOptions,
    notes: tuple[str, ...] = (),
) -> Task:
    """The draft as a task with these inputs, outputs and dimensions."""
    dimensions = _with_fixed(dimensions, options)
    try:
        task = Task(
            draft.name,
            draft.source,
            draft.function,
            inputs,
            outputs,
            dimensions,
            gpu=options.gpu,
            precision=options.precision or Precision.DTYPE,
            goal=options.goal,
            allow_library=options.allow_library,
            origin=draft.origin,
            assumptions=(*draft.assumptions, *notes),
        )
    except ValueError as error:
        raise TaskError(str(error)) from None
    return replace(task, kind=classify(task))


def _renamed(one: TensorInput, names: Mapping[str, str]) -> TensorInput:
    values = IndexValues(names[one.values.dimension]) if isinstance(one.values, IndexValues) else one.values
    return replace(one, dimensions=tuple(names[label] for label in one.dimensions), values=values)


def _renamed_dimension(one: Dimension, names: Mapping[str, str]) -> Dimension:
    formula = one.formula.renamed(names) if one.formula is not None else None
    return replace(one, name=names[one.name], formula=formula, unless=tuple(names[label] for label in one.unless))


def _spelled(note: str, names: Mapping[str, str]) -> str:
    for label, name in names.items():
        note = note.replace(f"{{{label}}}", name)
    return note


def _with_fixed(dimensions: tuple[Dimension, ...], options: TaskOptions) -> tuple[Dimension, ...]:
    """The dimensions with those that the person wants fixed made so, and what these follow from."""
    known = {one.name: one for one in dimensions}
    fixed: set[str] = set()
    for name in options.fixed:
        if name not in known:
            raise TaskError(f"no dimension is called {name}; this task has {', '.join(known)}")
        formula = known[name].formula
        fixed |= {name} if formula is None else {*formula.names}
    return following(
        tuple(replace(one, varies=one.varies and not options.fixed_all and one.name not in fixed) for one in dimensions)
    )


def linted(task: Task, options: TaskOptions, reference: Reference) -> Task:
    """The task with the lint's finding and its precision; raises where answers prove nothing and may not."""
    return settled(with_finding(task, examine(task, reference), options), options, reference)


def settled(task: Task, options: TaskOptions, reference: Reference) -> Task:
    """The task with the precision of PyTorch's own convolutions, where it has some and nobody said another."""
    return options.settle(task, reference) if options.precision is None and may_convolve(task) else task


def with_finding(task: Task, answer: LintAnswer, options: TaskOptions) -> Task:
    reason = finding(answer)
    if reason and not options.allow_degenerate:
        remedies: list[Remedy] = [Remedy(RemedyKind.ALLOW_DEGENERATE)]
        copied = next((one for one in task.tensors if one.name == answer.copied), None)
        empty = next((name for name, spec in task.specs().items() if spec.numel == 0), "")
        if empty:
            spec = task.specs()[empty]
            sizes = "x".join(str(size or _SOME_SIZE) for size in spec.shape)
            remedies.insert(0, Remedy(RemedyKind.GIVE_SHAPE, empty, f"{sizes}:{spec.dtype}"))
        elif copied is not None and not isinstance(copied.values, IntegerValues):
            remedies.insert(0, Remedy(RemedyKind.GIVE_VALUES, copied.name, _OTHER_VALUES))
        drawn = next((one for one in task.tensors if one.dtype.is_float), None)
        if answer.constant and drawn is not None and not empty:
            remedies.insert(0, Remedy(RemedyKind.GIVE_VALUES, drawn.name, _LARGER_VALUES))
        raise TaskError(f"task {task.name} proves nothing: {reason}", *remedies)
    return replace(task, degenerate=reason, leading=answer.leading)


def task_op_line(task: Task) -> str:
    """The op line that its kernel files must have: `layernorm_gelu(x, weight, bias, eps: float = 1e-5) -> y`."""
    return print_op(op_of_task(task)).removeprefix("op").strip()
