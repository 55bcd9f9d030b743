"""Makes a task from a reference and its inputs: probes the reference, names dimensions, lints.

Every source of a task (function, module, folder, words) ends here.
"""

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
from tilewright.tasks.default_precision import ResolvePrecision, may_convolve, precision_from_channels
from tilewright.tasks.dimension_names import ONE, dimension_names, following_names, output_names
from tilewright.tasks.errors import Remedy, RemedyKind, TaskError
from tilewright.tasks.questions import (
    ANSWER_SECONDS,
    BOUND,
    PROBE,
    BoundAnswer,
    LintAnswer,
    ProbeAnswer,
    ProbeRequest,
    degenerate_reason,
    lint_reference,
)

# -- the kind of workload of a reference, from the names its source uses --

# Tried in this order: a matmul with an epilogue is a matmul, attention is more than its matmuls and softmax.
# Functions and modules are identified by their last name in lower case.
_NAMES = {
    Kind.ATTENTION: """
        scaled_dot_product_attention multi_head_attention_forward multiheadattention transformer
        transformerencoder transformerencoderlayer transformerdecoder transformerdecoderlayer
    """,
    Kind.CONVOLUTION: """
        conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convtranspose1d convtranspose2d
        convtranspose3d
    """,
    Kind.MATMUL: """
        matmul mm bmm mv dot addmm addmv addbmm baddbmm linear bilinear einsum tensordot outer inner
        chain_matmul multi_dot lstm gru rnn lstmcell grucell rnncell
    """,
    Kind.LOSS: """
        cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy
        binary_cross_entropy_with_logits hinge_embedding_loss cosine_embedding_loss triplet_margin_loss
        crossentropyloss nllloss mseloss l1loss smoothl1loss huberloss kldivloss bceloss bcewithlogitsloss
        hingeembeddingloss cosineembeddingloss tripletmarginloss margin_ranking_loss
    """,
    Kind.SCAN: "cumsum cumprod cummax cummin logcumsumexp cumulative_trapezoid associative_scan",
    Kind.POOLING: " ".join(
        f"{adaptive}{kind}{bar}pool{n}d"
        for adaptive in ("", "adaptive_", "adaptive")
        for kind in ("max", "avg", "lp")
        for bar in ("_", "")
        for n in (1, 2, 3)
    ),
    Kind.NORMALISATION: """
        layer_norm rms_norm batch_norm group_norm instance_norm local_response_norm normalize layernorm rmsnorm
        batchnorm1d batchnorm2d batchnorm3d groupnorm instancenorm1d instancenorm2d instancenorm3d var var_mean
        std std_mean
    """,
    Kind.SOFTMAX: "softmax log_softmax logsumexp softmin logsoftmax gumbel_softmax",
    Kind.GATHER: """
        gather scatter scatter_ scatter_add scatter_add_ scatter_reduce index_select index_add index_add_
        index_copy take take_along_dim embedding embedding_bag embeddingbag masked_select index_put index_put_
        bincount
    """,
    Kind.REDUCTION: """
        sum mean prod amax amin max min argmax argmin topk sort norm nansum nanmean median all any mode
        count_nonzero cosine_similarity pairwise_distance vector_norm frobenius_norm aminmax kthvalue
    """,
    Kind.POINTWISE: """
        relu gelu silu sigmoid tanh exp log sqrt rsqrt abs clamp where pow add mul sub div neg sin cos leaky_relu elu
        selu softplus softsign hardtanh hardswish hardsigmoid relu6 mish erf erfc square reciprocal sign round floor
        ceil leakyrelu hardshrink softshrink celu threshold logsigmoid prelu glu lerp addcmul addcdiv clone to float
        half bfloat16 add_ mul_ sub_ div_ copy_ relu_ cat stack chunk split roll flip triu tril view reshape transpose
        permute t contiguous unsqueeze expand repeat_interleave repeat maximum minimum nan_to_num logical_and logical_or
        logical_not isnan bitwise_and bitwise_or bitwise_xor expm1 log1p log2 exp2 atan asin acos atan2
    """,
}
_BATCH_NORMS = {"batch_norm", "batchnorm1d", "batchnorm2d", "batchnorm3d"}
_KEEPDIM = "keepdim"  # such a reduction is broadcast back to its input


def classify(task: Task) -> Kind:
    """The kind of workload; `Kind.OTHER` if no known name is used."""
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
    found = [kind for kind, known in _NAMES.items() if names & {*known.split()}]
    if operators:
        found.append(Kind.POINTWISE)
    if ast.MatMult in operators and Kind.MATMUL not in found:
        found.insert(sum(kind in (Kind.ATTENTION, Kind.CONVOLUTION) for kind in found), Kind.MATMUL)
    weighted = {Kind.SOFTMAX, Kind.MATMUL} <= {*found} and _products(tree) > 1
    if weighted and not names & _BATCH_NORMS:  # attention has no batch norm before its softmax
        return Kind.ATTENTION
    if not {Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION, Kind.LOSS} & {*found}:
        if found[:1] == [Kind.REDUCTION] and _has_targets(tree, function):
            return Kind.LOSS
        # `e / e.sum(-1, keepdim=True)` of `e = exp(x - x.amax(-1, keepdim=True))`
        if found[:1] == [Kind.REDUCTION] and {"exp", "sum", _KEEPDIM} <= names and ast.Div in operators:
            return Kind.SOFTMAX
        if _is_norm(names, operators):
            return Kind.NORMALISATION
    return found[0] if found else Kind.OTHER


def called_names(source: str, function: str) -> frozenset[str]:
    """The last names, in lower case, of the functions it calls that the source does not define."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return frozenset()
    own = {node.name.lower() for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return frozenset(_used(tree, function)[0] - own)


def _has_targets(tree: ast.Module, function: str) -> bool:
    """Whether a parameter is named like a target or label."""
    taken = [node.args.args for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    return any(one.arg in ("target", "targets", "label", "labels") for one in itertools.chain(*taken))


def _is_norm(names: set[str], operators: set[type]) -> bool:
    """`x * rsqrt(x.pow(2).mean(-1) + eps)`, also with the mean subtracted, or `x / x.norm()`."""
    if ast.Div in operators and names & {"norm", "vector_norm", _KEEPDIM}:
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
    """Names called, and arithmetic operators used, in the function and the definitions it uses."""
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
                names |= {one.arg for one in node.keywords if one.arg == _KEEPDIM}
            if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
                continue  # a negative literal
            if isinstance(node, (ast.BinOp, ast.AugAssign)) or isinstance(getattr(node, "op", None), ast.USub):
                operators.add(type(node.op))  # type: ignore[attr-defined]
    return names, operators


_OTHER_VALUES = "normal:0:1"
_LARGER_VALUES = "normal:0:8"
_EXAMPLE_SIZE = 64  # in place of 0

Precheck = Callable[[str, str], None]  # takes a source and its function before anything runs; may refuse them


@dataclass(frozen=True)
class TaskOptions:
    """The options of a task beside its reference and inputs."""

    gpu: str = "H200"
    precision: Precision | None = None  # None: PyTorch's default, found by `resolve_precision`
    goal: Goal = Goal.THROUGHPUT
    allow_library: bool = False
    fixed: tuple[str, ...] = ()  # static dimensions
    fixed_all: bool = False
    allow_degenerate: bool = False
    precheck: Precheck = lambda source, function: None
    resolve_precision: ResolvePrecision = precision_from_channels

    def __post_init__(self) -> None:
        if self.gpu not in PROFILES:
            raise TaskError(f"{self.gpu!r} is no known GPU; write one of {', '.join(PROFILES)}")


@dataclass(frozen=True)
class Draft:
    """A reference and its inputs at one set of sizes, before anything was run."""

    name: str
    source: str
    function: str
    inputs: tuple[TaskInput, ...]
    dimensions: tuple[Dimension, ...]
    unspecified: frozenset[str]  # tensors whose values were not given
    origin: Origin
    results: tuple[str, ...] = ()  # names of the outputs, if known
    assumptions: tuple[str, ...] = ()
    named: bool = False  # the dimensions were given; else there is one per distinct size

    @property
    def tensors(self) -> tuple[TensorInput, ...]:
        """The tensors that the reference is called with."""
        return tuple(one for one in self.inputs if isinstance(one, TensorInput) and not one.optional)

    @property
    def numbers(self) -> tuple[NumberInput, ...]:
        return tuple(one for one in self.inputs if isinstance(one, NumberInput))


def axes_of(shape: Sequence[int], dimensions: dict[str, Dimension]) -> tuple[str, ...]:
    """The dimension of every size, added to `dimensions`. Equal sizes share one until probing separates them."""
    names = tuple(ONE if size == 1 else f"d{size}" for size in shape)
    dimensions.update((name, Dimension(name, size)) for name, size in zip(names, shape, strict=True))
    return names


def make_task(draft: Draft, options: TaskOptions) -> Task:
    """The task, probed and linted. Raises `TaskError`, also if the reference fails."""
    with Reference(draft.source, draft.function) as reference:
        try:
            task = probe_task(draft, options, reference)
            return linted(task, options, reference)
        except ReferenceProblem as problem:
            raise TaskError(str(problem)) from problem


def probe_task(draft: Draft, options: TaskOptions, reference: Reference) -> Task:
    """The task before the lint: outputs and dynamic dimensions, found by calling the reference."""
    options.precheck(draft.source, draft.function)
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
    """The task as described, with bounds beyond which the reference takes another branch."""
    request = ProbeRequest(draft.tensors, (), draft.numbers, draft.dimensions, unlink=False)
    try:
        answer: BoundAnswer = reference.call(BOUND, request, BoundAnswer, ANSWER_SECONDS)
    except ReferenceProblem as problem:  # the small sizes tried here may be at fault, not the task
        answer = BoundAnswer((), (), (f"branches of the reference were not searched for: {problem}",))
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
    unspecified = draft.unspecified
    if not draft.named:  # without the dimensions of inputs that were dropped
        dimensions = {name: dimensions[name] for one in draft.tensors for name in one.dimensions}
        # Index values name a dimension, and dimensions have no final names yet.
        unspecified |= {one.name for one in draft.tensors if isinstance(one.values, IndexValues)}
    fixed = options.fixed if draft.named else ()
    request = ProbeRequest(
        draft.tensors,
        tuple(unspecified),
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
    """A task from the result of probing; `names` are the final names of its dimension labels."""
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
    """The dimensions with the requested ones, and those they depend on, made static."""
    known = {one.name: one for one in dimensions}
    fixed: set[str] = set()
    for name in options.fixed:
        if name not in known:
            raise TaskError(f"there is no dimension {name}; this task has {', '.join(known)}")
        formula = known[name].formula
        fixed |= {name} if formula is None else {*formula.names}
    return following(
        tuple(replace(one, varies=one.varies and not options.fixed_all and one.name not in fixed) for one in dimensions)
    )


def linted(task: Task, options: TaskOptions, reference: Reference) -> Task:
    """The task with its lint result and precision. Raises `TaskError` for a degenerate task that is not allowed."""
    return with_precision(with_lint_result(task, lint_reference(task, reference), options), options, reference)


def with_precision(task: Task, options: TaskOptions, reference: Reference) -> Task:
    """The task with the precision of PyTorch's convolutions, if it has convolutions and no precision was given."""
    return options.resolve_precision(task, reference) if options.precision is None and may_convolve(task) else task


def with_lint_result(task: Task, answer: LintAnswer, options: TaskOptions) -> Task:
    reason = degenerate_reason(answer)
    if reason and not options.allow_degenerate:
        remedies: list[Remedy] = [Remedy(RemedyKind.ALLOW_DEGENERATE)]
        copied = next((one for one in task.tensors if one.name == answer.copied), None)
        empty = next((name for name, spec in task.specs().items() if spec.numel == 0), "")
        if empty:
            spec = task.specs()[empty]
            sizes = "x".join(str(size or _EXAMPLE_SIZE) for size in spec.shape)
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
