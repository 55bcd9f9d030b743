"""Operations on images, by indices, along rows in order, and losses, as people say them."""

from __future__ import annotations

from functools import partial

from tilewright.playbook.named_operation import (
    ALL,
    LEADING,
    NUMBER,
    UNKNOWN,
    WHOLE_NUMBER,
    Effect,
    NamedOperation,
    Number,
    Tensor,
)
from tilewright.records import DType

_ROWS = ("rows", "cols")
_IMAGE = ("batch", "channels", "height", "width")
_PIXELS = Tensor("x", _IMAGE)
_EPS = Number("eps")
_CHANNEL_WEIGHT, _CHANNEL_BIAS = Tensor("weight", (1,)), Tensor("bias", (1,))
_SAID_EPS = rf"(?:(?: with)? eps(?:ilon)?(?: of)? {NUMBER})?"


def _pooling(kind: str, word: str, places: int) -> NamedOperation:
    """Of windows along the last `places` dimensions; the words are those that `sentences` writes for a pooling."""
    inner = _IMAGE[2:] if places == 2 else ("length",) if places == 1 else ("depth", *_IMAGE[2:])
    return NamedOperation(
        f"{kind}_pool_{places}d",
        f"{word} pooling over windows of {{0}}",
        rf"{kind}pool{places} {WHOLE_NUMBER} {WHOLE_NUMBER} {WHOLE_NUMBER}",
        f"F.{kind}_pool{places}d({{v}}, {{0}}, stride={{1}}, padding={{2}})",
        Effect.RESHAPES,
        assumption="windows are {0} wide, {1} apart, with {2} of padding",
        takes=Tensor("x", ("batch", "channels", *inner)),
        gives=(0, 1, *(UNKNOWN,) * places),
        whole=3,
        dtype=DType.F32 if places == 3 else None,  # PyTorch has not all of them in 16 bits on a CPU
        leads=True,
    )


_of_images = partial(NamedOperation, takes=_PIXELS, leads=True)
_GROUPS = rf"(?: with)? (?:{WHOLE_NUMBER} groups|(?:num )?groups(?: of)? {WHOLE_NUMBER})"
_STATISTICS = (
    Tensor("running_mean", (1,)),
    Tensor("running_var", (1,), values="uniform 0.5 1.5"),
    _CHANNEL_WEIGHT,
    _CHANNEL_BIAS,
)
_IMAGES = (
    *(_pooling(kind, word, n) for kind, word in (("max", "maximum"), ("avg", "average")) for n in (1, 2, 3)),
    _of_images(
        "global_avg_pool",
        "the mean of each channel",
        r"global (?:average|avg|mean) pool(?:ing)?",
        "{v}.mean(dim=(2, 3))",
        Effect.RESHAPES,
        gives=(0, 1),
    ),
    _of_images(
        "global_max_pool",
        "the maximum of each channel",
        r"global max(?:imum)? pool(?:ing)?",
        "{v}.amax(dim=(2, 3))",
        Effect.RESHAPES,
        gives=(0, 1),
    ),
    _of_images(
        "batch_norm",
        "BatchNorm by its running statistics",
        rf"batch ?norm(?:ali[sz]ation)?(?: (?:in |for )?(?:inference|eval(?:uation)?)(?: mode)?)?{_SAID_EPS}",
        "F.batch_norm({v}, {running_mean}, {running_var}, {weight}, {bias}, eps={eps})",
        Effect.ELEMENTS,
        (*_STATISTICS, _EPS),
        "BatchNorm is that of inference, by its running mean and variance, with a weight and a bias; its eps is {0}",
        ("1e-5",),
    ),
    _of_images(
        "group_norm",
        "GroupNorm",
        rf"group ?norm(?:ali[sz]ation)?(?:{_GROUPS}{_SAID_EPS})?",
        "F.group_norm({v}, {0}, {weight}, {bias}, eps={eps})",
        Effect.WHOLE_ROW,
        (_CHANNEL_WEIGHT, _CHANNEL_BIAS, Number("eps", 1)),
        "GroupNorm has {0} groups of channels, a weight and a bias; its eps is {1}",
        ("8", "1e-5"),
        whole=1,
    ),
    _of_images(
        "instance_norm",
        "InstanceNorm without a weight",
        rf"instance ?norm(?:ali[sz]ation)?{_SAID_EPS}",
        "F.instance_norm({v}, eps={eps})",
        Effect.WHOLE_ROW,
        (_EPS,),
        "InstanceNorm has neither weight nor bias; its eps is {0}",
        ("1e-5",),
    ),
    NamedOperation(
        "nhwc_to_nchw",
        "channels moved to the front",
        r"(?:convert |permute )?nhwc (?:to|into) nchw",
        "{v}.permute(0, 3, 1, 2).contiguous()",
        Effect.RESHAPES,
        takes=Tensor("x", ("batch", "height", "width", "channels")),
        gives=(0, 3, 1, 2),
    ),
    NamedOperation(
        "nchw_to_nhwc",
        "channels moved to the end",
        r"(?:convert |permute )?nchw (?:to|into) nhwc",
        "{v}.permute(0, 2, 3, 1).contiguous()",
        Effect.RESHAPES,
        takes=_PIXELS,
        gives=(0, 2, 3, 1),
    ),
)

_ROTATED = """\
half = {v}.shape[-1] // 2
turned = torch.cat((-{v}[..., half:], {v}[..., :half]), dim=-1)
{v} * {cos} + turned * {sin}"""
_QUANTISED = """\
scale = {v}.float().abs().amax(dim=-1, keepdim=True) / 127
q = torch.round({v}.float() / scale).clamp(-127, 127).to(torch.int8)
q, scale"""
_running = partial(NamedOperation, effect=Effect.WHOLE_ROW, dtype=DType.F32)
_ENTRIES = r"(?: (?:values?|elements?|entries))?"
_MOVES = (
    NamedOperation(
        "glu",
        "one half of each row times the sigmoid of the other",
        r"glu|gated linear unit",
        "F.glu({v}, dim=-1)",
        Effect.RESHAPES,
        assumption="the halves are those of the last dimension",
        gives=(LEADING, UNKNOWN),
        even=-1,
    ),
    NamedOperation(
        "packed_swiglu",
        "SiLU of one half of each row times the other",
        r"packed swiglu",
        "first, second = {v}.chunk(2, dim=-1)\nF.silu(first) * second",
        Effect.RESHAPES,
        assumption="the halves are those of the last dimension, and the first goes through SiLU",
        gives=(LEADING, UNKNOWN),
        even=-1,
    ),
    NamedOperation(
        "transpose",
        "the transpose",
        r"(?:matrix )?transpos(?:e|ed|ition)(?: (?:of )?matrix)?",
        "{v}.transpose(-2, -1).contiguous()",
        Effect.RESHAPES,
        takes=Tensor("x", _ROWS),
        gives=(LEADING, -1, -2),
    ),
    NamedOperation(
        "rotary",
        "a rotary position embedding",
        r"(?:rotary|rope)(?: (?:position(?:al)? )?(?:embeddings?|encoding))?",
        _ROTATED,
        Effect.WHOLE_ROW,
        (Tensor("cos", (-2, -1)), Tensor("sin", (-2, -1))),
        "the rotary embedding turns the halves of the last dimension, with tables cos and sin of [sequence, head_size]",
        takes=Tensor("x", ("batch", "heads", "sequence", "head_size")),
        even=-1,
    ),
    NamedOperation(
        "embedding",
        "rows of a table by index",
        r"(?:token |word )?embedding(?: (?:table )?look ?up| table| layer)?(?: (?:of |for )?(?:indices|tokens|ids))?"
        r"|look ?up (?:in )?embeddings?(?: table)?",
        "F.embedding({v}, {table})",
        Effect.RESHAPES,
        (Tensor("table", ("vocabulary", "features")),),
        takes=Tensor("indices", ("tokens",), DType.I64, "index vocabulary"),
        gives=(ALL, "features"),
        leads=True,
    ),
    NamedOperation(
        "gather_rows",
        "rows by index",
        r"(?:gather|select|index|take) rows(?: (?:of|from) (?:matrix|table|tensor))?(?: by (?:index|indices))?"
        r"|index ?select|row gather|gather",
        "{v}[{indices}]",
        Effect.RESHAPES,
        (Tensor("indices", ("picked",), DType.I64, "index rows"),),
        takes=Tensor("x", _ROWS),
        gives=("picked", 1),
    ),
    _running(
        "cumsum",
        "the cumulative sum",
        r"(?:inclusive )?(?:(?:cumulative|running|prefix) (?:sum|total)|cum ?sum|(?:prefix )?scan)",
        "torch.cumsum({v}, {over})",
        assumption="the sum runs {along}",
    ),
    _running(
        "exclusive_cumsum",
        "the cumulative sum without the element itself",
        r"exclusive (?:cumulative sum|cum ?sum|prefix sum|scan)",
        "torch.cumsum({v}, {over}) - {v}",
        assumption="the sum runs {along}",
    ),
    _running(
        "reverse_cumsum",
        "the cumulative sum from the end",
        r"(?:reverse|suffix) (?:cumulative sum|cum ?sum|prefix sum|scan|sum)"
        r"|(?:cumulative sum|cum ?sum) (?:in )?reverse",
        "{v}.flip({axis}).cumsum({over}).flip({axis})",
        assumption="the sum runs from the end {along}",
    ),
    _running(
        "cumprod",
        "the cumulative product",
        r"cumulative product|cum ?prod|prefix product",
        "torch.cumprod({v}, {over})",
        assumption="the product runs {along}",
    ),
    NamedOperation(
        "top_k",
        "the {0} largest of each row",
        rf"top ?(?:k|{WHOLE_NUMBER}){_ENTRIES}|(?:k|{WHOLE_NUMBER}) largest{_ENTRIES}"
        rf"|largest (?:k|{WHOLE_NUMBER}){_ENTRIES}|largest (?:values|elements|entries)",
        "torch.topk({v}, {0}, dim=-1)",
        Effect.RESHAPES,
        assumption="k is {0}; values and indices are given, the largest first",
        defaults=("8",),
        whole=1,
        gives=(UNKNOWN, UNKNOWN),
        results=("values", "indices"),
    ),
    NamedOperation(
        "quantise_int8",
        "int8 with a scale for each row",
        r"(?:dynamic )?(?:quanti[sz]e|quanti[sz]ation)(?: (?:of )?activations)?(?: (?:to|into))? int ?8"
        r"|int ?8 quanti[sz](?:e|ation)",
        _QUANTISED,
        Effect.WHOLE_ROW,
        assumption="each row is divided by its largest magnitude / 127 and rounded; the scales are f32, [rows, 1]",
        results=("q", "scale"),
    ),
    NamedOperation(
        "dequantise_int8",
        "int8 times the scale of its row",
        r"(?:de ?quanti[sz]e|de ?quanti[sz]ation)(?: (?:from )?int ?8)?(?: weights)?"
        r"|int ?8 de ?quanti[sz](?:e|ation)(?: with scales?)?",
        "{v}.to({scale}.dtype) * {scale}",
        Effect.ELEMENTS,
        (Tensor("scale", (0, "1"), values="uniform 0.01 0.1"),),
        "x is int8, the scale has one element per row, and the result is of its dtype",
        dtype=DType.F32,
        takes=Tensor("x", _ROWS, DType.I8, "integers -127 127"),
    ),
)

_PREDICTION, _TARGET = Tensor("prediction", _ROWS), Tensor("target")
_LOGITS, _CLASSES = Tensor("logits", ("rows", "classes")), Tensor("target", (0,), DType.I64, "index classes")
_one_loss = partial(NamedOperation, effect=Effect.RESHAPES, gives=(), dtype=DType.F32)
_of_classes = partial(_one_loss, extras=(_CLASSES,), takes=_LOGITS)
_PAIR = r"(?: (?:between|of) (?:two|2) (?:tensors|vectors|matrices|arrays))?"


def _loss(
    name: str, says: str, pattern: str, code: str, assumption: str = "", target: Tensor = _TARGET, number: str = ""
) -> NamedOperation:
    said = rf"(?:(?: with)? {number}(?: of)? {NUMBER})?" if number else ""
    return _one_loss(
        name,
        says,
        rf"(?:{pattern})(?: loss| error)?{_PAIR}{said}",
        code,
        extras=(target,),
        assumption=assumption or "the loss is the mean over all elements",
        defaults=("1.0",) if number else (),
        takes=_PREDICTION,
    )


_LOSSES = (
    NamedOperation(
        "pairwise_distance",
        "the distance of each row of x from that of y",
        r"(?:pairwise|euclidean) distances?(?: (?:of|between) (?:rows|(?:two|2) (?:tensors|vectors|matrices)))?",
        "F.pairwise_distance({v}, {y})",
        Effect.RESHAPES,
        (Tensor("y"),),
        takes=Tensor("x", _ROWS),
        gives=(0,),
    ),
    _loss("mse", "the mean squared error", r"mse|mean squared? (?:error|loss)|l2 loss", "F.mse_loss({v}, {target})"),
    _loss("mae", "the mean absolute error", r"mae|l1 (?:loss|error)|mean absolute error", "F.l1_loss({v}, {target})"),
    _loss(
        *("smooth_l1", "the smooth L1 loss", r"smooth l1", "F.smooth_l1_loss({v}, {target}, beta={0})"),
        "beta is {0}; the mean over all elements",
        number="beta",
    ),
    _loss(
        *("huber", "the Huber loss", r"huber", "F.huber_loss({v}, {target}, delta={0})"),
        "delta is {0}; the mean over all elements",
        number="delta",
    ),
    _loss(
        *("hinge", "the hinge loss", r"hinge", "torch.mean(torch.clamp(1 - {v} * {target}, min=0))"),
        "the loss is mean(max(0, 1 - prediction * target))",
    ),
    _loss(
        *("bce", "binary cross entropy of logits", r"(?:bce|binary cross entropy)(?: loss)?(?: with logits)?"),
        "F.binary_cross_entropy_with_logits({v}, {target})",
        "predictions are logits, targets lie between 0 and 1; the mean over all elements",
        Tensor("target", None, None, "uniform 0 1"),
    ),
    _loss(
        *("kl_divergence", "the KL divergence", r"kl(?: div(?:ergence)?)?|kullback leibler(?: divergence)?"),
        'F.kl_div(F.log_softmax({v}, dim=-1), F.softmax({target}, dim=-1), reduction="batchmean")',
        "both are logits; the divergence of softmax(target) from softmax(prediction), the mean over rows",
    ),
    _of_classes(
        "cross_entropy",
        "cross entropy of logits",
        r"(?:softmax )?cross entropy(?: loss)?(?: with logits)?",
        "F.cross_entropy({v}, {target})",
        assumption="targets are class indices; the loss is the mean over rows",
    ),
    _of_classes(
        "smoothed_cross_entropy",
        "cross entropy of logits with smoothed labels",
        rf"(?:softmax )?cross entropy(?: loss)?(?: with logits)?(?: with| and)? label smoothing(?: of)? {NUMBER}",
        "F.cross_entropy({v}, {target}, label_smoothing={0})",
        assumption="targets are class indices, smoothed by {0}; the loss is the mean over rows",
    ),
    _of_classes(
        "cross_entropy",
        "cross entropy of logits, without rows of one target",
        r"(?:softmax )?cross entropy(?: loss)?(?: with logits)?(?: with| and)? ignore index (-?\d+)",
        "F.cross_entropy({v}, {target}, ignore_index={0})",
        assumption="targets are class indices; the loss is the mean over rows whose target is not {0}",
        whole=1,
    ),
    _of_classes(
        "nll",
        "the negative log likelihood",
        r"(?:nll|negative log likelihood)(?: loss)?",
        "F.nll_loss({v}, {target})",
        assumption="the value is logarithms of probabilities, targets are class indices; "
        "the loss is the mean over rows",
        takes=Tensor("log_probabilities", ("rows", "classes")),
    ),
    _one_loss(
        "triplet_loss",
        "the triplet margin loss",
        rf"triplet(?: margin)?(?: loss)?(?:(?: with)?(?: an?)? margin(?: of)? {NUMBER})?",
        "F.triplet_margin_loss({v}, {positive}, {negative}, margin={0})",
        extras=(Tensor("positive"), Tensor("negative")),
        assumption="the margin is {0}, distances are Euclidean; the mean over rows",
        defaults=("1.0",),
        takes=Tensor("anchor", _ROWS),
    ),
)

TENSOR_OPERATIONS: tuple[NamedOperation, ...] = (*_IMAGES, *_MOVES, *_LOSSES)

# Sizes of dimensions that nobody said.
_USUAL = {
    4: "kv_heads",
    8: "depth",
    16: "batch heads",
    64: "channels",
    128: "filters height width head_size",
    1024: "cols features",
    2048: "keys sequence",
    4096: "rows n m k p q r length hidden cached",
    8192: "tokens picked",
    32000: "vocabulary classes",
    1 << 24: "elements",
}
USUAL_SIZES = {name: size for size, names in _USUAL.items() for name in names.split()}
