"""All operations the grammar of words knows, the words in them, and what people ask for that has none."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

from tilewright.playbook.attention_words import ATTENTION_OPERATIONS
from tilewright.playbook.convolution_words import CONVOLUTIONS
from tilewright.playbook.errors import NotUnderstood, outside_grammar
from tilewright.playbook.named_operation import NUMBER, NamedOperation
from tilewright.playbook.product_words import MATMUL, PRODUCT_OPERATIONS
from tilewright.playbook.row_words import ROW_OPERATIONS
from tilewright.playbook.tensor_words import TENSOR_OPERATIONS
from tilewright.tasks.errors import Remedy, RemedyKind

NAMED_OPERATIONS: tuple[NamedOperation, ...] = (
    *ROW_OPERATIONS,
    *PRODUCT_OPERATIONS,
    *ATTENTION_OPERATIONS,
    *TENSOR_OPERATIONS,
    *CONVOLUTIONS,
)

_ALIKE = 0.6
_COMMON = frozenset(("with", "over", "the", "each", "all", "and", "for", "then"))
# Requests that work, for a refusal to name the nearest.
EXAMPLES = (
    "vector add",
    "x * sigmoid(x)",
    "layernorm then gelu",
    "rmsnorm in bf16 for 8192x4096",
    "group norm + SiLU",
    "batch norm inference",
    "softmax over the last dimension",
    "softmax with temperature 0.7",
    "mean over dim 1",
    "sum of all elements",
    "argmax of each row",
    "top 8 of each row",
    "cumulative sum along dim 1",
    "max pooling 2x2",
    "2d convolution 3x3 with padding 1 then relu",
    "depthwise convolution",
    "matmul with bias and GELU",
    "a @ b.T",
    "batched matmul",
    "linear layer then relu",
    "SwiGLU feed-forward",
    "causal attention",
    "rotary embedding",
    "embedding lookup",
    "quantise to int8 per row",
    "cross entropy",
    "mean squared error",
    "transpose",
    "concatenate two tensors along dim 1",
)

# Known, and not in words: what it is called, and the request nearest to it that works, where one is near.
_ABSENT: tuple[tuple[str, str, str], ...] = (
    (
        r"\b(?:paged|sliding(?: window)?|windowed|local|sparse|linear) attention\b",
        "attention of chosen keys",
        "causal attention",
    ),
    (
        r"\bbottom ?(?:\d+|k)\b|\b(?:\d+|k) (?:smallest|lowest)\b"
        r"|\b(?:smallest|lowest) (?:\d+|k|values|elements|entries|numbers)\b",
        "the smallest of each row",
        "top 8 of each row",
    ),
    (r"\b(?:backward|gradients?|grad)\b", "gradients", ""),
    (
        r"\bgrouped conv|\bconv(?:(?!norm|\bthen\b).)*\b(?:\d+ groups\b|groups(?: of)? ?=? ?\d)",
        "convolutions in groups",
        "depthwise convolution",
    ),
    (r"\b(?:interpolat(?:e|ion)|resiz(?:e|ing)|upsampl(?:e|ing))\b", "resampling", ""),
)
# Known, and without a structure: no function helps either.
_UNWRITTEN: tuple[tuple[str, str], ...] = (
    (r"\b(?:self|cross|multi ?head) attention\b", "attention layers with their projections"),
    (r"\b(?:lstm|gru|rnn|recurrent)\b", "recurrent networks"),
    (r"\b(?:cumulative|running) (?:max|min)(?:im(?:um|a))?\b|\bcum(?:max|min)\b", "running maxima or minima"),
    (r"\b(?:sort(?:ed|ing)?|median|quantiles?|percentiles?|unique)\b", "sorting"),
    (
        r"\b(?:dropout(?! free)|random|randn|bernoulli|sampl(?:e|ing)(?! (?:var|std|standard)))\b",
        "random numbers",
    ),
    (r"\b(?:fft|fourier|dct)\b", "Fourier transforms"),
    (r"\b(?:cholesky|svd|inverse(?! square)|invert|eigenvalues?|determinant|solve|lu)\b", "decompositions"),
    (r"\b(?:sparse(?! attention)|csr|spmm|spmv)\b", "sparse tensors"),
    (r"\b(?:scatter|histogram|bincount)\b", "scatters"),
    (r"\b(?:fp8|f8e4m3|f8e5m2|fp4|int4|nf4)\b", "dtypes below 16 bits but int8"),
    (r"\b(?:state space|mamba|ssm|moe|mixture of experts)\b", "whole networks"),
    (
        r"\b(?:(?:bi|tri)?linear|(?:bi)?cubic) (?:interpolat(?:e|ion)|resiz(?:e|ing)|upsampl(?:e|ing))\b"
        r"|\bgrid sample\b",
        "resampling between elements",
    ),
    (r"\btrace\b", "sums of diagonals"),
)


def refuse_absent(text: str) -> None:
    """Raises `NotUnderstood` where the text asks for what words have no operation for, or no structure either."""
    for pattern, what in _UNWRITTEN:
        if said := re.search(pattern, text):
            raise NotUnderstood(
                f'the playbook has no structure for {what} ("{said[0]}"), in words or as a function',
                Remedy(RemedyKind.CHOOSE_MODEL),
            )
    for pattern, what, near in _ABSENT:
        if re.search(pattern, text):
            raise outside_grammar(f"the playbook reads no words about {what}", near=near)


def nearest_example(text: str) -> str:
    """The request that works and shares most with the text; "" where none shares a word or most of its letters."""
    words = set(re.findall(r"[a-z]{3,}", text)) - _COMMON
    shared = {one: len(words & set(re.findall(r"[a-z]{3,}", one.lower()))) for one in EXAMPLES}
    alike = {one: difflib.SequenceMatcher(None, text, one.lower()).ratio() for one in EXAMPLES}
    best = max(EXAMPLES, key=lambda one: (shared[one], alike[one]))
    return best if shared[best] or alike[best] > _ALIKE else ""


_PRODUCT = r"(?:mat ?mul|gemm|(?:matrix )?(?:multiplication|product))"
# Said by itself each could be several things.
_READINGS: tuple[tuple[str, str], ...] = (
    (r"(?:normali[sz](?:e|ation)|norm)", "layernorm, rmsnorm, l2 normalise or group norm"),
    (
        r"(?:reduction|reduce|parallel reduction)",
        "the sum, mean, max or min of each row or of all elements",
    ),
    (r"(?:pooling|pool)", "max pooling 2x2 or average pooling 2x2"),
    (r"add (?:rms|layer) ?norm", '"residual add + rmsnorm" or "add two tensors then rmsnorm"'),
    (rf"triangular {_PRODUCT}", '"upper triangular matmul" or "lower triangular matmul"'),
    (r"loss", "mean squared error, cross entropy, huber loss or KL divergence"),
    (r"(?:masked|causal) soft ?max", '"multiply by a mask then softmax" or a softmax of scores with some left out'),
    (r"bias \+ [a-z]+", '"add bias then gelu" or "gelu then add bias"'),
    (r"cross entropy.* label smoothing", '"cross entropy with label smoothing 0.1", or with another number'),
    (r"quanti[sz]e(?: to)? int ?8 with (?:an? )?scale", '"quantise to int8 per row", or a function with the scale'),
    (r"gram(?: matrix)?", '"x @ x.T", of its rows, or "x.T @ x", of its columns'),
    (r"(?:int ?8 )?quanti[sz](?:e|ation)", "quantise to int8 per row or dequantise int8"),
    (r"normali[sz]e (?:to|with) (?:zero|0) mean.*", '"layernorm without affine", or "standardise each row"'),
    (r".*attention with (?:an? )?(?:attention )?mask", '"causal attention", or a function with the mask'),
    (r"activation", "relu, gelu, silu or sigmoid"),
    (
        r"gated (?:mlp|ffn|feed ?forward)(?: network| block)?",
        '"SwiGLU feed-forward", or a function with the activation',
    ),
)


def readings(text: str) -> str | None:
    """What a phrase could be that says too little."""
    return next((what for pattern, what in _READINGS if re.fullmatch(pattern, text)), None)


_NO_MORE = r"(?=$|[;)]|,(?! ?\d)| (?:in|then|and|with|for|followed|eps|[+-]|b?f(?:p|loat)?\d+)(?! ?\d))"  # of a size
# After the size of a head nothing follows that it could be a number of.
_NO_NOUN = r"(?=$|[;)]|, ?(?!\d+(?:$|[,x ]*\d))| (?:in|then|and|with|for|on)\b(?! ?\d+(?:$|[,x]))| batch\b| seq)"
_SYMMETRIC = (
    r"(?:vector )?(?:dot|inner) product|cosine similarity|mse(?: loss)?|mean squared error|mae|mean absolute error"
)
_LOSS = r"loss|error|mse|mae|entropy|divergence"
_SPREAD = r"\b(?:var(?:iance)?|std|standard deviation)\b"
_BIASED = r"(?:biased|population|without bessels? correction)"
_SCALES = r"(?:scales?|scale factors?|scaling factors?)"
_TURNED = r"\b(?:{0} (?:is )?(?:transposed?|t)|transposed? (?:matrix )?{0}|{0}\^t)\b"
_BY = r"(?:times|by|@|\*)"
_MATRIX = r"(?:matrix )?[ab] ?\(?(\d+x\d+)\)?"


def _norm_of(said: re.Match[str]) -> str:
    """nn.LayerNorm(768, eps=1e-6), layernorm 768: the size of what is normalised."""
    return f"{said[1]} features={said[2]} (" if said[2] else f"{said[1]} features={said[3]}"


# What people say, and what the grammar reads in its place.
_REWORDED: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (rf"\b({MATMUL}|gemv|mat ?vec|matrix vector product)(?: of| for)? (\d{{2,}})\b{_NO_MORE}", r"\1 of size \2"),
    (rf"\b(?:{MATMUL}) (?:with|where) (?:a and b|both(?: operands| matrices)?)(?: are)? transposed\b", "a.t @ b.t"),
    (rf"\b(?:{MATMUL}) (?:with|where) {_TURNED.format('a')}", "a.t @ b"),
    (rf"\b(?:{MATMUL}) (?:with|where) {_TURNED.format('b')}", "a @ b.t"),
    *(
        (rf"(?:\b(?:{MATMUL})(?: of)? {a} (?:with|and|{_BY})|{a} {_BY}) {b}", code)
        for a, b, code in (
            (_TURNED.format("a"), _TURNED.format("b"), "a.t @ b.t"),
            (_TURNED.format("a"), r"b\b", "a.t @ b"),
            (r"\ba", _TURNED.format("b"), "a @ b.t"),
        )
    ),
    (r"\bsquare (?=mat ?mul|matrix|gemm)", ""),
    (rf"\b(layer ?norm|rms ?norm)(?: ?\((\d+)(?=[,)]),? ?| (\d{{2,}})\b{_NO_MORE})", _norm_of),
    (r"\b(layer ?norm|rms ?norm)(?: of)? size (\d+)\b", r"\1 features=\2"),
    (r"\b(weights?|bias)(?: vector)? of (?:size|length|shape) (\d+)\b", r"\1 features=\2"),
    (r"\band (?=(?:no|without|with no) (?:bias|weight|affine))", ""),
    (r"(?<=\d), ?bias ?= ?false\b", " without bias"),
    (r"\b(mse|l1|huber|nll)loss\b", r"\1 loss"),
    (r"\bcrossentropyloss\b", "cross entropy loss"),
    (r"\bsmoothl1loss\b", "smooth l1 loss"),
    (r"\bbcewithlogitsloss\b", "bce with logits"),
    (r"\battention\((\w+, ?\w+, ?\w+), ?is causal ?= ?true\)", r"attention with causal mask(\1)"),
    (r"\battention\((\w+, ?\w+, ?\w+), ?is causal ?= ?false\)", r"attention(\1)"),
    (r"\b(?:(?:non|not) ?causal|bidirectional) (?=(?:[a-z]+ )*attention\b)", ""),
    (r"\b(attention\b.*?),? (?:(?:non|not) ?causal|without (?:an? )?(?:causal )?mask(?:ing)?)(?=$|,)", r"\1"),
    (r"\b(?:matmul|mm)\(([a-z](?:\.t)?), ?([a-z](?:\.t)?)\)", r"\1 @ \2"),
    (r"\b(batch|instance) ?norm ?2 ?d\b", r"\1 norm"),
    (r"\b(batch|instance) ?norm ?\((\d+)(?=[,)]),? ?", r"\1 norm channels=\2 ("),
    (r"\bbn\b", "batch norm"),
    (
        r"\badaptive (max|average|avg) ?pool(?:ing)?(?: ?2 ?d)?(?: to| with)?(?: output size)? ?=? ?1(?:x1)?\b",
        r"global \1 pooling",
    ),
    (r"\b(?:sum|add) up\b|\badd(?= all (?:of )?(?:the )?(?:elements|entries|values|numbers)\b)", "sum"),
    (r"\b(?:total|grand) (?:sum|total)\b(?: of (?:an?|the) (?:matrix|array|vector|tensor))?", "sum of all elements"),
    (r"(?<!of )(?<!over )(?<!across )(?<!for )\b(?:each|every) (?:single )?(?:element|value|entry|number)\b", "it"),
    (r"\b(?:over|across|along) (?:the )?height and (?:the )?width\b", "over the spatial dimensions"),
    (r"\b(?:over|across|along) (?:the )?batch\b(?! (?:dim|ax|size|of|norm|\d))", "over the first dimension"),
    (
        r"\b(?:between|of|for) (?:the )?(?:predictions?|preds?|y pred) and (?:the )?(?:targets?|labels?|y true)\b",
        "between two tensors",
    ),
    (rf"\b({_SYMMETRIC}) (?:of|between) ([a-hj-uw-z]) and ([a-hj-uw-z])\b", r"\1(\2, \3)"),
    (
        r"\b(cosine similarity|(?:euclidean|pairwise) distances?) (?:of|between) (?:the )?(?:matching|corresponding) "
        r"rows of ([a-hj-uw-z]) and ([a-hj-uw-z])\b",
        r"\1(\2, \3)",
    ),
    (r"\b(?:the )?difference (?:between|of) ([a-hj-uw-z]) and ([a-hj-uw-z])\b", r"(\1 - \2)"),
    (
        rf"^((?:(?!{_SPREAD}).)*)({_SPREAD})((?:(?!{_SPREAD})[^,;()])*)(?:, ?{_BIASED}| ?\({_BIASED}\))(?=$|[ ,;])",
        r"\1population \2\3",
    ),
    (r"\b(var|std)\(([a-z], ?dim ?= ?-?\d+), ?(?:unbiased ?= ?false|correction ?= ?0)\)", r"population \1(\2)"),
    (
        rf"(?<=\bint8 )with (?:(?:an? |one )?{_SCALES} (?:per|for (?:each|every)) row|per row {_SCALES})\b",
        "per row",
    ),
    (
        rf"\bquanti[sz]e (?:each|every) row to int8 with (?:an?|one|its(?: own)?) {_SCALES}\b",
        "quantise to int8 per row",
    ),
    (
        r"\b(min ?max (?:normali[sz]e|scale)[a-z ]*?)(?: in)?to (?:the )?(?:range |interval )?"
        r"(?:\[ ?0, ?1 ?\]|0 ?(?:to|and|\.\.|-) ?1\b(?!\.))",
        r"\1",
    ),
    (r"\bgram matrix of (?:the )?rows of ([a-hj-uw-z])\b", r"\1 @ \1.t"),
    (r"\bgram matrix of (?:the )?columns of ([a-hj-uw-z])\b", r"\1.t @ \1"),
    (r"\b(?:label smooth(?:ed|ing)) (cross entropy(?: loss)?)(?:,? with smoothing)?", r"\1 with label smoothing"),
    (
        rf"\bcross entropy\((\w+, ?\w+), ?(label smoothing|ignore index) ?= ?{NUMBER}\)",
        r"cross entropy with \2 \3(\1)",
    ),
    (r"\b(cross entropy(?: loss)?), ?(?:with )?(?=label smoothing\b|ignore index\b)", r"\1 "),
    (r"\bignor(?:e|ing) index ?= ?(?=-?\d)", "ignore index "),
    (r"\b(?:silu|swish) and mul\b", "packed swiglu"),
    (r"\bby 1 ?/ ?sqrt\((\d+(?:\.\d+)?)\)", lambda said: f"by {float(said[1]) ** -0.5!r}"),
    (r"^([a-z])\.t$", r"transpose(\1)"),
    (r"\b([a-z]) (?:to the|raised to the) power (?:of )?(\d+)", r"\1 ** \2"),
    (r"\b([a-z]) squared\b", r"\1 ** 2"),
    (r"\b(\d+) heads of (?:size|dim(?:ension)?) (\d+)\b", r"heads=\1 head size=\2"),
    (rf"\b(\d+) heads of (\d+)(?: (?:dim(?:ension)?s?|elements))?(?: each)?\b{_NO_NOUN}", r"heads=\1 head size=\2"),
    (r"\bover (\d+(?:x\d+)+) windows?\b", r"with \1 window"),
    (r"\bflash ?attention[ -]?v?[23]\b", "flash attention"),
    (
        r"\battention(?: of| for| with| on)? q(?:uery|ueries)?,? (?:and )?k(?:eys?)?,? (?:and )?v(?:alues?)?\b",
        "attention",
    ),
    (r"\b(top ?(?:k|\d+)) values and indices\b", r"\1"),
    (r"\b(?:multi query attention|mqa)\b", "grouped query attention kv heads=1"),
    (r"\bhidden states?\b", "it"),
    (r"\b(?:for|on|of|over) (?:an? )?n ?x ?c ?x ?h ?x ?w(?: images?| inputs?| tensors?)?\b", ""),
    (r"\b(\d+(?:x\d+){3}) (?:images?|feature maps?)\b", r"\1"),
    (r"(?<!x)\b(\d+)x(\d+)x(\d+) (?:images?|feature maps?)\b", r"channels=\1 height=\2 width=\3"),
    (r"(?<!x)\b(\d+)x(\d+) (?:images?|feature maps?)\b", r"height=\1 width=\2"),
    (r"\b(?:transpose|swap) (?:of )?the last (?:two|2) (?:dim(?:ension)?s|axes)\b", "transpose"),
    (r"\bswap (?:the )?rows and columns\b", "transpose"),
    (r"\bscaled softmax with (?:a )?scale (?:of )?([\d.]+)", r"scale by \1 then softmax"),
    (rf"\b({_LOSS})\b([^;]*?)(?:,| with)? (?:reduction ?=? ?mean|mean reduction)\b", r"\1\2"),
    (r"\b(sum|mean|max|min) reduction\b", r"\1"),
    (r"\b(?:large|big|huge|long) (?=array|vector|matri|tensor)", ""),
    (rf"\b{_MATRIX} ?(?:times|by|and|with|@|\*) ?{_MATRIX}", r"\1 by \2"),
    (r"\bdequantiz", "dequantis"),
)


def refuse_several(text: str) -> None:
    """Raises `NotUnderstood` for a norm over several dimensions, as LayerNorm([64, 64]) is, for losses that take
    probabilities in PyTorch's notation and logits in words, and for tensors whose names would change places."""
    if said := re.search(r"\bbmm\(b, ?a\)|\battention\((?!q, ?k, ?v\b)[qkv], ?[qkv], ?[qkv]\b", text):
        raise outside_grammar(f'"{said[0]}" has tensors in another order than that of their names; write the usual one')
    if said := re.search(r"\b(?:kl div|binary cross entropy) ?\(", text):
        name = said[0].rstrip(" (")
        raise outside_grammar(
            f'"{said[0]}...)" takes {"log-" if "kl" in name else ""}probabilities in PyTorch; say "{name} loss" where '
            "predictions are logits"
        )
    if said := re.search(r"\b(?:layer|rms) ?norm ?\((?:[a-z], ?)?[\[(] ?\d+ ?(?:,|x) ?\d+[^)]*\)", text):
        raise outside_grammar(f'"{said[0]}" is over several dimensions, and norms are over one in words')


def reworded(text: str) -> str:
    """Other words for the same, of which the grammar has one. Raises `NotUnderstood` for x^T that none of them has."""
    for pattern, words in _REWORDED:
        text = re.sub(pattern, words, text)
    if said := re.search(r"\b([a-z])\^t\b", text):
        one = said[1]
        raise outside_grammar(
            f'"{said[0]}" could be a transpose or a power; write {one}.T, as in {one}.T @ {one}, or {one} ** t, or '
            '"dot product" of vectors'
        )
    return text


# Single words of the grammar, for a suggestion where another is meant.
_WORDS = """
layernorm rmsnorm softmax normalise normalize mean average sum max maximum min minimum gelu silu swish swiglu geglu relu
relu6 leaky elu selu sigmoid tanh softplus softsign mish hardswish hardsigmoid hardtanh exp log sqrt rsqrt abs absolute
square squares squared negate clamp clip scale multiply divide add subtract bias residual gate mask weight vector then
plus minus times divided multiplied before after exact approximate without with eps slope alpha variance argmax argmin
logsumexp frobenius temperature matmul matrix matrices multiplication product gemm batched linear dense feed forward
transpose transposed rotary embedding lookup gather rows cumulative cumsum prefix scan exclusive reverse top largest
quantise quantize dequantise int8 pooling global group batch instance norm inference cross entropy loss error huber
hinge divergence triplet cosine similarity concatenate arrays vectors tensors two elementwise dot outer groups
attention causal decode normalization normalisation normalize quantization quantisation
"""
WORDS = tuple(_WORDS.split())
# These and every word of a pattern: what a refusal does not name as the word that is not understood.
KNOWN = frozenset(
    (
        *(*WORDS, "cast"),
        *(
            word
            for one in NAMED_OPERATIONS
            for pattern in (one.pattern, one.pattern.replace(" ?", ""))  # "group norm" and "groupnorm"
            for word in re.findall(r"[a-z]{2,}\d?|l[12]", pattern)
        ),
    )
)


def _convolution_as_said(written: re.Match[str]) -> str:
    return "transposed convolution" if written[1] else "convolution"


def as_said(text: str) -> str:
    """Words as people say them, of those that the grammar writes for itself."""
    text = re.sub(r"\b(max|av)g?pool[123] \d+ \d+ \d+", lambda one: f"{one[1].replace('av', 'average')} pooling", text)
    text = re.sub(r"\b(?:causal)?(?:depth)?(back)?conv[123] \d+ \d+ \d+ \d+(?: without)?", _convolution_as_said, text)
    return re.sub(r"\bcast(bf16|f16|f32)\b", r"cast to \1", text)
