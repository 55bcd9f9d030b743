"""Operations on elements and along rows, as people say them."""

from __future__ import annotations

from functools import partial

from tilewright.playbook.named_operation import NUMBER, Effect, Extra, Form, NamedOperation, Number, Tensor
from tilewright.records import DType

_WEIGHT = Tensor("weight", (-1,))
_BIAS = Tensor("bias", (-1,))
_GATE = Tensor("gate")
_EPS = Number("eps")

_SET = r"(?: with)?"
_SAID_EPS = rf"(?:{_SET} eps(?:ilon)?(?: of)? {NUMBER})?"
_NO_PARAMETERS = (
    r"(?: (?:without|no|with no) (?:affine(?: parameters| transform)?|weights?(?: (?:or|and|nor) bias)?|parameters))"
)
_NO_BIAS = r"(?: (?:without|with no|no) bias| with weights? only)"
_LAYER_NORM = r"(?:layer ?norm|layer normali[sz]e|layer normali[sz]ation)"
_RMS_NORM = r"(?:rms ?norm|rms normali[sz]e|rms normali[sz]ation|root mean square norm(?:ali[sz]ation)?)"
_MEAN, _SUM = r"(?:row |reduce )?(?:mean|average)(?: reduction)?", r"(?:row |reduce )?(?:sum|total)(?: reduction)?"
_MAX, _MIN = (
    r"(?:row |reduce )?(?:max|maximum|largest|greatest|biggest|highest)(?: value| element| entry| number| reduction)?",
    r"(?:row |reduce )?(?:min|minimum|smallest|lowest)(?: value| element| entry| number| reduction)?",
)
_SAMPLE, _VAR, _STD = r"(?:(?:sample|unbiased) )?", r"var(?:iance)?", r"(?:std|standard deviation)"
_UNBIASED = "; the sum of squares is divided by the count less 1, as PyTorch has it"
_TIMES = r"(?:multiply|mul)(?: by| with)?"
_whole_row, _of_row = (partial(NamedOperation, effect=one) for one in (Effect.WHOLE_ROW, Effect.REDUCES))
_COLUMN_VECTOR = "(?:(?:scale|column) vector|vector)"


def _norms(
    name: str,
    title: str,
    pattern: str,
    extras: tuple[Extra, ...],
    said: str,
    without: str,
    eps: str,
    elsewhere: NamedOperation | None = None,
) -> tuple[NamedOperation, NamedOperation]:
    """A norm over the last dimension without its parameters, and with them."""
    function = f"F.{title[:-4].lower()}_norm"
    brought = ", ".join(f"{{{one.name}}}" for one in extras)
    over = f"{title} goes over the last dimension and has"
    plain = NamedOperation(
        name,
        f"{title} without {without}",
        rf"{pattern}(?:{_NO_PARAMETERS}{_SAID_EPS}|(?: with)? eps(?:ilon)?(?: of)? {NUMBER}{_NO_PARAMETERS})",
        f"{function}({{v}}, ({{v}}.shape[-1],), eps={{eps}})",
        Effect.WHOLE_ROW,
        (_EPS,),
        f"{over} no {' and '.join(one.name for one in extras)}; its eps is {{0}}",
        (eps,),
        leads=True,
        elsewhere=elsewhere,
    )
    affine = NamedOperation(
        name,
        title,
        rf"{pattern}(?: with (?:{said}))?{_SAID_EPS}",
        f"{function}({{v}}, ({{v}}.shape[-1],), {brought}, {{eps}})",
        Effect.WHOLE_ROW,
        (*extras, _EPS),
        f"{over} {' and '.join(f'a {one.name}' for one in extras)}; its eps is {{0}}",
        (eps,),
        leads=True,
        elsewhere=elsewhere,
    )
    return plain, affine


def _row_statistic(name: str, says: str, pattern: str, method: str, more: str = "") -> NamedOperation:
    """One number of each row."""
    code = f"{{v}}.{method}({{over}})"
    several = method not in ("prod", "argmax", "argmin")
    assumption = f"{says} is that {{along}}{more}"
    return NamedOperation(name, says, pattern, code, Effect.REDUCES, assumption=assumption, several=several)


def _by_statistic(name: str, says: str, pattern: str, sign: str, method: str) -> NamedOperation:
    """The value at hand less, or over, a number of its row."""
    return NamedOperation(
        name,
        says,
        pattern,
        f"{{v}} {sign} {{v}}.{method}({{over_kept}})",
        Effect.WHOLE_ROW,
        assumption=f"{says[says.index('the') :]} is that {{along}}",
        form=Form.ACTION,
        several=True,
    )


def _with_tensor(
    name: str, says: str, pattern: str, sign: str, extra: Tensor, assumption: str, value: str = "{v}"
) -> NamedOperation:
    """The value at hand and a tensor, element by element; with a function of the value it is said as a name."""
    code, form = f"{value} {sign} {{{extra.name}}}", Form.ACTION if value == "{v}" else Form.FUNCTION
    return NamedOperation(name, says, pattern, code, extras=(extra,), assumption=assumption, form=form)


ROW_OPERATIONS: tuple[NamedOperation, ...] = (
    *_norms(
        *("layernorm", "LayerNorm", _LAYER_NORM, (_WEIGHT, _BIAS)),
        *(r"affine(?: parameters)?|weights? and bias", "affine parameters", "1e-5"),
    ),
    *_norms(
        *("rmsnorm", "RMSNorm", _RMS_NORM, (_WEIGHT,), "weights?", "a weight", "1e-6"),
        NamedOperation(
            "rmsnorm",
            "RMSNorm without a weight",
            "",
            "{v} * torch.rsqrt({v}.square().mean({over_kept}) + {eps})",
            Effect.WHOLE_ROW,
            (_EPS,),
            "RMSNorm divides by the root of the mean square {along} and has no weight; its eps is {0}",
            several=True,
        ),
    ),
    NamedOperation(
        "softmax", "softmax", r"soft ?max", "torch.softmax({v}, {over})", Effect.WHOLE_ROW, makes_positive=True
    ),
    NamedOperation(
        "softmax",
        "softmax with a temperature",
        rf"soft ?max(?: with| at)? temperature(?: of)?(?: {NUMBER})?|(?:tempered|temperature) soft ?max",
        "torch.softmax({v} / {temperature}, {over})",
        Effect.WHOLE_ROW,
        (Number("temperature"),),
        "the temperature is a number, {0} where none is given",
        ("0.7",),
        makes_positive=True,
    ),
    NamedOperation("log_softmax", "log-softmax", r"log ?soft ?max", "torch.log_softmax({v}, {over})", Effect.WHOLE_ROW),
    _whole_row(
        "l2_normalize",
        "division by the L2 norm",
        r"(?:l2|euclidean) ?(?:normali[sz]ed?|normali[sz]ation)(?: rows)?"
        r"|normali[sz]e (?:rows )?(?:to )?unit (?:length|norm)|(?:normali[sz]e|divide) by (?:l2|euclidean) norm",
        "F.normalize({v}, {over})",
        assumption="L2 normalisation divides by the norm {along}, at least 1e-12",
    ),
    NamedOperation(
        "layernorm",
        "LayerNorm without a bias",
        rf"{_LAYER_NORM}(?:{_NO_BIAS}{_SAID_EPS}|{_SET} eps(?:ilon)?(?: of)? {NUMBER}{_NO_BIAS})",
        "F.layer_norm({v}, ({v}.shape[-1],), {weight}, None, {eps})",
        Effect.WHOLE_ROW,
        (_WEIGHT, _EPS),
        "LayerNorm goes over the last dimension and has a weight and no bias; its eps is {0}",
        ("1e-5",),
        leads=True,
    ),
    _row_statistic("row_mean", "the mean", _MEAN, "mean"),
    _row_statistic("row_sum", "the sum", _SUM, "sum"),
    _row_statistic("row_max", "the maximum", _MAX, "amax"),
    _row_statistic("row_min", "the minimum", _MIN, "amin"),
    _row_statistic("row_prod", "the product", r"(?:row )?prod(?:uct)?", "prod"),
    _row_statistic("row_var", "the variance", rf"{_SAMPLE}(?:row )?{_VAR}", "var", _UNBIASED),
    _row_statistic("row_std", "the standard deviation", rf"{_SAMPLE}(?:row )?{_STD}", "std", _UNBIASED),
    *(
        _of_row(
            f"row_population_{method}",
            f"the population {says}",
            rf"(?:population|biased) (?:row )?{pattern}",
            f"{{v}}.{method}(correction=0, {{over}})",
            assumption=f"the population {says} is that {{along}}; the sum of squares is divided by the count",
            several=True,
        )
        for method, says, pattern in (("var", "variance", _VAR), ("std", "standard deviation", _STD))
    ),
    _of_row(
        "row_geometric_mean",
        "the geometric mean",
        r"(?:row )?geometric (?:mean|average)",
        "torch.exp(torch.log({v}).mean({over}))",
        assumption="the geometric mean is that {along}",
        needs_positive=True,
        makes_positive=True,
        several=True,
    ),
    _of_row(
        "row_rms",
        "the root of the mean square",
        r"(?:row )?(?:rms|root mean square)(?: value)?",
        "{v}.square().mean({over}).sqrt()",
        assumption="the mean square is that {along}",
        several=True,
    ),
    _row_statistic("argmax", "the index of the maximum", rf"arg ?max|(?:index|position) of {_MAX}", "argmax"),
    _row_statistic("argmin", "the index of the minimum", rf"arg ?min|(?:index|position) of {_MIN}", "argmin"),
    _of_row(
        "logsumexp",
        "the logarithm of the sum of exponentials",
        r"log ?sum ?exp|log(?:arithm)?(?: of)? sum of exponentials",
        "torch.logsumexp({v}, {over})",
        assumption="logsumexp is that {along}",
    ),
    NamedOperation(
        "frobenius_norm",
        "the Frobenius norm",
        r"frobenius norm",
        "{v}.norm()",
        Effect.RESHAPES,
        gives=(),
        dtype=DType.F32,
    ),
    NamedOperation(
        "frobenius_normalize",
        "division by the Frobenius norm",
        r"frobenius (?:norm(?:ali[sz]e|ali[sz]ation)|norm normali[sz]ation)",
        "{v} / {v}.norm()",
        dtype=DType.F32,
    ),
    _of_row(
        "row_l1_norm",
        "the L1 norm",
        r"l1 ?norm",
        "{v}.norm(p=1, {over})",
        assumption="the L1 norm is that {along}",
    ),
    _row_statistic("row_norm", "the L2 norm", r"(?:l2|euclidean) ?norm", "norm"),
    _whole_row(
        "l1_normalize",
        "division by the sum of absolute values",
        r"l1 ?(?:normali[sz]ed?|normali[sz]ation)",
        "F.normalize({v}, p=1.0, {over})",
        assumption="L1 normalisation divides by the sum of absolute values {along}, at least 1e-12",
    ),
    NamedOperation(
        "gelu",
        "GELU by its tanh formula",
        r"gelu(?: (?:with|using|by))? (?:tanh|approximate(?: tanh)?|tanh approximat(?:e|ion)|approximation|new)"
        r"|(?:tanh(?: approx(?:imate)?)?|approx(?:imate|imated)?) gelu",
        'F.gelu({v}, approximate="tanh")',
        assumption="GELU is the tanh approximation",
    ),
    NamedOperation(
        "gelu",
        "exact GELU",
        r"(?:exact |erf )?gelu(?: exact|(?: (?:with|using|by))? erf)?",
        "F.gelu({v})",
        assumption="GELU is the exact one, with erf",
    ),
    NamedOperation("silu", "SiLU", r"silu|swish", "F.silu({v})"),
    _with_tensor(
        *("swiglu", "SiLU times a gate", r"swiglu(?: with gate)?|swish gated linear unit", "*", _GATE),
        "SwiGLU is silu(x) * gate, with the gate a tensor of its own that has the same shape",
        "F.silu({v})",
    ),
    _with_tensor(
        *("geglu", "GELU times a gate", r"geglu(?: with gate)?", "*", _GATE),
        "GEGLU is gelu(x) * gate with the exact GELU, and the gate a tensor of its own with the same shape",
        "F.gelu({v})",
    ),
    NamedOperation("relu", "ReLU", r"relu", "torch.relu({v})"),
    NamedOperation("relu6", "ReLU6", r"relu ?6", "F.relu6({v})"),
    NamedOperation(
        "leaky_relu",
        "LeakyReLU",
        rf"leaky ?relu(?:{_SET}(?: (?:(?:negative )?slope|alpha)(?: of)?)? {NUMBER})?",
        "F.leaky_relu({v}, {0})",
        assumption="LeakyReLU has the negative slope {0}",
        defaults=("0.01",),
    ),
    NamedOperation(
        "elu",
        "ELU",
        rf"elu(?:{_SET}(?: alpha(?: of)?)? {NUMBER})?",
        "F.elu({v}, {0})",
        assumption="ELU has alpha {0}",
        defaults=("1.0",),
    ),
    NamedOperation("sigmoid", "sigmoid", r"sigmoid|logistic", "torch.sigmoid({v})", makes_positive=True),
    NamedOperation("log_sigmoid", "log-sigmoid", r"log ?sigmoid", "F.logsigmoid({v})"),
    NamedOperation("tanh", "tanh", r"tanh|hyperbolic tangent", "torch.tanh({v})"),
    NamedOperation("softplus", "softplus", r"soft ?plus", "F.softplus({v})", makes_positive=True),
    NamedOperation("mish", "Mish", r"mish", "F.mish({v})"),
    NamedOperation("hardswish", "hardswish", r"hard ?swish", "F.hardswish({v})"),
    NamedOperation("hardsigmoid", "hardsigmoid", r"hard ?sigmoid", "F.hardsigmoid({v})"),
    NamedOperation("selu", "SELU", r"selu", "F.selu({v})"),
    NamedOperation("softsign", "softsign", r"soft ?sign", "F.softsign({v})"),
    NamedOperation("hardtanh", "hardtanh", r"hard ?tanh", "F.hardtanh({v})"),
    NamedOperation(
        "squared_relu", "squared ReLU", r"squared relu|relu ?squared|relu ?2", "torch.square(torch.relu({v}))"
    ),
    NamedOperation("sin", "sine", r"sine?", "torch.sin({v})"),
    NamedOperation("cos", "cosine", r"cos(?:ine)?", "torch.cos({v})"),
    NamedOperation("erf", "erf", r"erf|error function", "torch.erf({v})"),
    NamedOperation(
        "rsqrt",
        "reciprocal square root",
        r"rsqrt|(?:reciprocal|inverse) square root",
        "torch.rsqrt({v})",
        needs_positive=True,
        makes_positive=True,
    ),
    NamedOperation("reciprocal", "reciprocal", r"reciprocal", "torch.reciprocal({v})", needs_positive=True),
    NamedOperation("sign", "sign", r"sign", "torch.sign({v})"),
    NamedOperation("round", "rounding", r"round(?:ing)?", "torch.round({v})"),
    NamedOperation("exp", "exp", r"exp|exponentials?|exponentiate", "torch.exp({v})", makes_positive=True),
    NamedOperation(
        "sqrt", "square root", r"sqrt|square roots?", "torch.sqrt({v})", needs_positive=True, makes_positive=True
    ),
    NamedOperation(
        "log", "natural logarithm", r"log|logarithm|natural log(?:arithm)?", "torch.log({v})", needs_positive=True
    ),
    NamedOperation("abs", "absolute value", r"abs|absolute(?: values?)?", "torch.abs({v})", makes_positive=True),
    NamedOperation(
        "square",
        "square",
        r"squares?|squared(?: values)?|(?:raise )?(?:to )?pow(?:er)?(?: of)? 2",
        "torch.square({v})",
        makes_positive=True,
    ),
    NamedOperation("cube", "cube", r"cubes?|cubed", "{v} ** 3"),
    NamedOperation("power", "to the power of {0}", rf"(?:raise )?(?:to )?pow(?:er)?(?: of)? {NUMBER}", "{v} ** {0}"),
    NamedOperation("neg", "negation", r"neg|negate|negation", "-{v}"),
    NamedOperation(
        "clamp", "clamp to [{0}, {1}]", rf"(?:clamp|clip) {NUMBER} to {NUMBER}", "torch.clamp({v}, {0}, {1})"
    ),
    *(
        NamedOperation(
            f"cast_{to}",
            f"a cast to {to}",
            f"cast{to}",
            f"{{v}}.to(torch.{full})",
            assumption=f"the result is {to}",
            dtype=usual,
        )
        for to, full, usual in (
            (DType.F16, "float16", DType.F32),
            (DType.BF16, "bfloat16", DType.F32),
            (DType.F32, "float32", DType.BF16),
        )
    ),
    _whole_row(
        "standardize",
        "differences from the mean in standard deviations",
        r"standardi[sz]e|standardi[sz]ation|z ?score(?: normali[sz]ation)?",
        "({v} - {v}.mean({over_kept})) / {v}.std({over_kept})",
        assumption="mean and standard deviation are those {along}",
        several=True,
    ),
    _whole_row(
        "min_max_normalize",
        "min-max normalisation",
        r"min ?max (?:normali[sz](?:ed?|ation)|scal(?:e|ing))",
        "({v} - {v}.amin({over_kept})) / ({v}.amax({over_kept}) - {v}.amin({over_kept}))",
        assumption="minimum and maximum are those {along}; where they are equal the result is NaN",
        several=True,
    ),
    NamedOperation(
        "scale",
        "times a number",
        r"(?:scale|multiply|mul)(?: by| with)? (?:scalar|number|constant)",
        "{v} * {alpha}",
        extras=(Number("alpha"),),
        assumption="the number is alpha, 2 where none is given",
        defaults=("2.0",),
        form=Form.ACTION,
    ),
    NamedOperation("scale", "times {0}", rf"(?:scale|multiply|mul)(?: by)? {NUMBER}", "{v} * {0}", form=Form.ACTION),
    NamedOperation("divide", "divided by {0}", rf"(?:divide|div)(?: by)? {NUMBER}", "{v} / {0}", form=Form.ACTION),
    NamedOperation("shift", "plus {0}", rf"add {NUMBER}", "{v} + {0}", form=Form.ACTION),
    NamedOperation("shift", "minus {0}", rf"subtract {NUMBER}", "{v} - {0}", form=Form.ACTION),
    _with_tensor(
        *("bias", "plus a bias", r"(?:add )?bias(?: vector)?|bias add(?:ition)?", "+", _BIAS),
        "the bias is a vector with one element per column",
    ),
    _with_tensor(
        *("residual", "plus a residual", r"(?:add )?residual(?: tensor)?|residual add(?:ition)?", "+"),
        *(Tensor("residual"), "the residual is a tensor of its own that has the shape of what it is added to"),
    ),
    _with_tensor(
        *("gate", "times a gate", rf"{_TIMES} gate(?: tensor)?", "*", _GATE),
        "the gate has the shape of what it is multiplied with",
    ),
    _with_tensor(
        *("mask", "times a mask", rf"{_TIMES} mask(?: tensor)?", "*", Tensor("mask")),
        "the mask has the shape of what it is multiplied with",
    ),
    _with_tensor(
        *("scale", "times a weight", rf"(?:{_TIMES}|scale(?: by| with)?) weights?(?: vector)?", "*", _WEIGHT),
        "the weight is a vector with one element per column",
    ),
    _with_tensor(
        *("scale", "times a vector", rf"(?:{_TIMES}|scale(?: by| with)?) {_COLUMN_VECTOR}", "*"),
        *(Tensor("scale", (-1,)), "the scale is a vector with one element per column"),
    ),
    _by_statistic("center", "minus the mean", f"subtract {_MEAN}", "-", "mean"),
    _by_statistic("minus_max", "minus the maximum", f"subtract {_MAX}", "-", "amax"),
    _by_statistic("over_sum", "divided by the sum", f"(?:divide|normali[sz]e)(?: by)? {_SUM}", "/", "sum"),
    _by_statistic("over_max", "divided by the maximum", f"(?:divide|normali[sz]e)(?: by)? {_MAX}", "/", "amax"),
)
