"""The kind of workload a reference is, from the names its source uses: for advice, never for what is right."""

from __future__ import annotations

import ast
import itertools

from tilewright.records import IndexValues, Kind, Task


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
