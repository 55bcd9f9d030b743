"""Operations on two tensors and products of matrices, as people say them."""

from __future__ import annotations

from functools import partial

from tilewright.playbook.named_operation import LEADING, NUMBER, UNKNOWN, Effect, NamedOperation, Number, Tensor
from tilewright.records import DType

_VECTORS = r"(?:(?:two|2) )?(?:arrays|vectors|lists|1d tensors)"
_TENSORS = r"(?:(?:two|2) )?(?:tensors|inputs|matrices|images)"
_ROWS = ("rows", "cols")
_VECTOR = Tensor("x", ("elements",))
_MATRIX = Tensor("a", ("m", "k"))
_product = partial(NamedOperation, effect=Effect.RESHAPES, leads=True)


def _two(name: str, sign: str, says: str, verb: str, noun: str) -> tuple[NamedOperation, NamedOperation]:
    """Two tensors, element by element: of arrays, and of anything else."""
    joined = r"(?: of| for)?"
    alone = (
        rf"vector (?:{noun})(?: of {_VECTORS})?"
        rf"|(?:elementwise |pointwise )?(?:{verb}|{noun}){joined} {_VECTORS}(?: elementwise)?"
    )
    # "multiply two matrices" is a product of matrices
    among = _TENSORS if sign != "*" else _TENSORS.replace("|matrices", "")
    alone_too = "|add" if sign == "+" else ""
    matrix = rf"|matrix (?:{noun})" if sign in "+-" else ""
    whole = (
        rf"(?:elementwise |pointwise )(?:{verb}|{noun})(?:{joined} {_TENSORS})?"
        rf"|(?:{verb}|{noun}){joined} {among}{matrix}{alone_too}"
        rf"|(?:{verb}|{noun}){joined} {_TENSORS} (?:elementwise|element by element)"
    )
    code = f"{{v}} {sign} {{y}}"
    return (
        NamedOperation(f"vector_{name}", says, alone, code, extras=(Tensor("y"),), takes=_VECTOR, leads=True),
        NamedOperation(name, says, whole, code, extras=(Tensor("y"),), takes=Tensor("x", _ROWS), leads=True),
    )


_TWO_OPERANDS = (
    *_two("add", "+", "x plus y", "add|sum", "add(?:ition)?|sum"),
    *_two("subtract", "-", "x minus y", "subtract", "subtract(?:ion)?|difference"),
    *_two("multiply", "*", "x times y", "multiply|mul", "multiply|multiplication|mul|hadamard product"),
    *_two("divide", "/", "x over y", "divide|div", "divi(?:de|sion)"),
    *(
        NamedOperation(
            name,
            f"the {says} of x and y",
            rf"(?:elementwise |pointwise )?{name}(?:imum)? of {_TENSORS}|elementwise {name}(?:imum)?",
            f"torch.{name}imum({{v}}, {{y}})",
            extras=(Tensor("y"),),
            takes=Tensor("x", _ROWS),
            leads=True,
        )
        for name, says in (("max", "greater"), ("min", "smaller"))
    ),
    NamedOperation(
        "multiply",
        "x times y",
        rf"hadamard(?: product)?(?: of {_TENSORS})?",
        "{v} * {y}",
        extras=(Tensor("y"),),
        takes=Tensor("x", _ROWS),
    ),
    NamedOperation(
        "axpy",
        "a number times x, plus y",
        rf"(?:axpy|saxpy|daxpy)(?:(?: with)? (?:alpha|a)(?: of)? {NUMBER})?",
        "{alpha} * {v} + {y}",
        extras=(Tensor("y"), Number("alpha")),
        assumption="alpha is a number",
        defaults=("2.0",),
        takes=_VECTOR,
    ),
    NamedOperation(
        "dot",
        "the sum of x times y",
        rf"(?:vector )?(?:dot|inner) product(?: (?:of|between) {_VECTORS})?|dot(?: of {_VECTORS})?",
        "torch.sum({v} * {y})",
        Effect.RESHAPES,
        (Tensor("y"),),
        takes=_VECTOR,
        gives=(),
        dtype=DType.F32,
    ),
    NamedOperation(
        "cosine_similarity",
        "the cosine similarity of x and y",
        r"cosine similarity(?: (?:of|between) (?:(?:two|2) )?(?:tensors|inputs|vectors|rows))?",
        "F.cosine_similarity({v}, {y}, {over})",
        Effect.REDUCES,
        (Tensor("y"),),
        "the cosine is that {along}",
        takes=Tensor("x", _ROWS),
    ),
    NamedOperation(
        "concat",
        "x and y side by side",
        r"concat(?:enate|enation|enating)?(?: of)?(?: (?:two|2) (?:tensors|matrices|inputs|arrays))?|cat",
        "torch.cat(({v}, {y}), {over})",
        Effect.RESHAPES,
        (Tensor("y"),),
        "they are joined {along}",
        takes=Tensor("x", _ROWS),
        gives=(UNKNOWN, UNKNOWN),
    ),
)

_PRODUCT = r"(?:multiplication|multiply|mul|product|multiplies)"
MATMUL = (
    rf"mat ?mul(?:tiplication)?|gemm|sgemm|hgemm|matrix (?:matrix )?{_PRODUCT}"
    r"|(?:multiply|product of|multiplication of) (?:(?:two|2) )?(?:square )?matrices|mm"
    r"|(?:multiply )?matrix (?:times|by|with) (?:another )?matrix"
)
_TRANSPOSED = r"(?:b transposed|transposed b|transposed (?:second )?(?:weights?|operand|matrix)|b t)"
_LINEAR = r"(?:linear|fully connected|dense|projection)(?: projection)?"
_FEED = r"(?: (?:feed ?forward|ffn|mlp)(?: network| block)?)"
_UP, _DOWN = Tensor("w_up", ("hidden", -1)), Tensor("w_down", (-1, "hidden"))


def _triangular(side: str, code: str) -> NamedOperation:
    matrices = rf"(?:(?:two|2) )?{side} triangular(?: matrices)?"
    return NamedOperation(
        f"{side}_triangular_matmul",
        f"the product of two {side} triangular matrices",
        rf"{side} triangular (?:{MATMUL})|(?:{MATMUL}) (?:of|for|with|between) {matrices}"
        rf"|(?:multiply|product of|multiplication of) {matrices}",
        f"{code}({{v}} @ {{b}})",
        Effect.RESHAPES,
        (Tensor("b", (-1, -1), values=f"normal {side}"),),
        f"both matrices are {side} triangular, with their zeros in memory, and so is the result",
        takes=Tensor("a", ("n", "n"), values=f"normal {side}"),
        gives=(0, 1),
        leads=True,
    )


def _triangular_by_dense(side: str) -> NamedOperation:
    matrix, dense = rf"{side} triangular(?: matrix)?", r"(?:dense |general |full )?matrix"
    return NamedOperation(
        f"{side}_triangular_times_dense",
        f"the product of a matrix that is {side} triangular and one that is not",
        rf"(?:multiply )?{matrix} (?:times|by|with) {dense}|(?:{MATMUL}) of {matrix} (?:by|with) {dense}",
        "{v} @ {b}",
        Effect.RESHAPES,
        (Tensor("b", (-1, "n")),),
        f"a is {side} triangular, with its zeros in memory",
        takes=Tensor("a", ("m", "m"), values=f"normal {side}"),
        gives=(LEADING, "n"),
        leads=True,
    )


_PRODUCTS = (
    _triangular("upper", "torch.triu"),
    _triangular("lower", "torch.tril"),
    _triangular_by_dense("upper"),
    _triangular_by_dense("lower"),
    _product(
        "matmul",
        "the product of two matrices",
        rf"(?:{MATMUL})(?: (?:of )?(?:(?:two|2) )?matri(?:x|ces)|(?: of)? a (?:by|with|times) b)?",
        "{v} @ {b}",
        extras=(Tensor("b", (-1, "n")),),
        takes=_MATRIX,
        gives=(LEADING, "n"),
    ),
    _product(
        "matmul_transposed",
        "the product of a and the transpose of b",
        rf"(?:{MATMUL})(?:(?: of)? a)? (?:with|by|times) {_TRANSPOSED}",
        "{v} @ {b}.T",
        extras=(Tensor("b", ("n", -1)),),
        takes=_MATRIX,
        gives=(LEADING, "n"),
    ),
    _product(
        "diagonal_matmul",
        "the product of a diagonal matrix and a matrix",
        rf"diagonal (?:matrix )?(?:times|{_PRODUCT})(?: (?:by |with )?(?:a )?matrix)?",
        "torch.diag({v}) @ {b}",
        extras=(Tensor("b", (0, "n")),),
        assumption="a is the diagonal",
        takes=Tensor("a", ("m",)),
        gives=(0, "n"),
    ),
    _product(
        "batched_matmul",
        "the products of matrices in pairs",
        rf"batch(?:ed)? (?:{MATMUL})|bmm",
        "torch.bmm({v}, {b})",
        extras=(Tensor("b", (0, -1, "n")),),
        takes=Tensor("a", ("batch", "m", "k")),
        gives=(0, 1, "n"),
    ),
    _product(
        "matvec",
        "the product of a matrix and a vector",
        rf"(?:matrix vector|matrix times vector) ?{_PRODUCT}?|mat ?vec|gemv|multiply matrix (?:by|with) vector"
        rf"|matrix (?:by|with) vector",
        "{v} @ {vector}",
        extras=(Tensor("vector", (-1,)),),
        takes=_MATRIX,
        gives=(0,),
    ),
    _product(
        "vecmat",
        "the product of a vector and a matrix",
        rf"vector (?:matrix|times matrix) ?{_PRODUCT}?|vec ?mat|multiply vector (?:by|with) matrix",
        "{v} @ {b}",
        extras=(Tensor("b", (0, "n")),),
        takes=Tensor("vector", ("k",)),
        gives=("n",),
    ),
    _product(
        "outer_product",
        "the outer product of two vectors",
        rf"outer product(?: of {_VECTORS})?",
        "torch.outer({v}, {y})",
        extras=(Tensor("y", ("n",)),),
        takes=Tensor("x", ("m",)),
        gives=(0, "n"),
    ),
    _product(
        "linear",
        "a linear layer without a bias",
        rf"{_LINEAR} (?:without|with no|no) bias",
        "F.linear({v}, {weight})",
        extras=(Tensor("weight", ("n", -1)),),
        assumption="the linear layer has a weight of [out, in] and no bias",
        takes=Tensor("x", ("rows", "k")),
        gives=(LEADING, "n"),
    ),
    _product(
        "linear",
        "a linear layer",
        rf"{_LINEAR}(?: with bias)?",
        "F.linear({v}, {weight}, {bias})",
        extras=(Tensor("weight", ("n", -1)), Tensor("bias", ("n",))),
        assumption="the linear layer has a weight of [out, in] and a bias",
        takes=Tensor("x", ("rows", "k")),
        gives=(LEADING, "n"),
    ),
    NamedOperation(
        "swiglu_feed_forward",
        "a SwiGLU feed-forward network",
        rf"(?:swiglu|llama){_FEED}",
        "F.linear(F.silu(F.linear({v}, {w_gate})) * F.linear({v}, {w_up}), {w_down})",
        Effect.ELEMENTS,
        (Tensor("w_gate", ("hidden", -1)), _UP, _DOWN),
        "the network is w_down(silu(w_gate(x)) * w_up(x)), weights of [out, in] without biases",
        takes=Tensor("x", _ROWS),
    ),
    NamedOperation(
        "feed_forward",
        "a feed-forward network with GELU",
        r"(?:gelu )?(?:feed ?forward|ffn|mlp)(?: network| block)?(?: with gelu)?",
        "F.linear(F.gelu(F.linear({v}, {w_up})), {w_down})",
        Effect.ELEMENTS,
        (_UP, _DOWN),
        "the network is w_down(gelu(w_up(x))) with the exact GELU, weights of [out, in] without biases",
        takes=Tensor("x", _ROWS),
    ),
)

PRODUCT_OPERATIONS: tuple[NamedOperation, ...] = (*_TWO_OPERANDS, *_PRODUCTS)
