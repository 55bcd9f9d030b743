"""The first version of a convolution: a thread for every result, right at any size and on any GPU."""

from __future__ import annotations

from tilewright.playbook.convolutions.program import Convolution, Window
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.products.finish_text import RESERVED, finish_text
from tilewright.playbook.products.plan_text import Choices
from tilewright.records import DType

_AXES = ("depth", "height", "width")
_WORDS = ("channel", "channels", "filters", "from_weight", "from_x", "image", "rest", "results")
_OF_AXES = (f"{kind}_{axis}" for kind in ("x", "y", "tap", "from", "over", "at") for axis in _AXES)
_RESERVED = RESERVED | frozenset((*_WORDS, *_OF_AXES))


def draft_convolution(convolution: Convolution, op_line: str, choices: Choices = Choices.NONE) -> Fragment:
    """A thread goes through the taps and channels of one result."""
    plan = PlanLines(convolution.finish, op_line)
    finish = finish_text(convolution, quick=False, reserved=_RESERVED)
    axes = dict(zip(_AXES[-len(convolution.windows) :], convolution.windows, strict=True))
    plan.add("const", "THREADS = 256")
    results = plan.name("results")
    sizes = [convolution.batch.expression, str(convolution.groups), convolution.filters.expression]
    sizes += [one.results.expression for one in axes.values()]
    plan.add("let", f"{results} = {' * '.join(one for one in sizes if one != '1') or '1'}")
    plan.add("need", f"{results} <= {MOST_32_BIT} * THREADS", "a grid holds so many blocks")
    element, output = convolution.element, convolution.output
    pairs = [
        (f"const {element.cpp}* __restrict__ x", convolution.x),
        (f"const {element.cpp}* __restrict__ weight", convolution.weight),
        (f"{output.dtype.cpp}* __restrict__ y", output.name),
        ("long long results", results),
        ("int channels", convolution.channels.expression),
        ("int filters", convolution.filters.expression),
    ]
    pairs += [(f"int x_{axis}", one.length.expression) for axis, one in axes.items()]
    pairs += [(f"int y_{axis}", one.results.expression) for axis, one in axes.items()]
    pairs += finish.parameters
    signature = KernelSignature([one for one, _ in pairs], [other for _, other in pairs])
    name = f"{convolution.finish.name}_convolution"
    plan.launch(name, f"ceil_div({results}, THREADS)", "THREADS", signature.given)
    kernel = signature.kernel("__launch_bounds__(THREADS)", name, _body(convolution, axes, finish.call("sum")))
    kind = "transposed convolution" if convolution.transposed else "convolution"
    header = (
        f"{convolution.finish.name}, a first version: simple, and right at any size.\n\nA {kind}: one thread goes "
        "through the channels and taps of one result; places outside the input are skipped."
    )
    more = {DType.BF16: ("cuda_bf16.h",), DType.F16: ("cuda_fp16.h",)}.get(element, ())
    included = sorted({*includes(convolution.finish, *more)})
    return fragment(header, plan, included, _constants(convolution, axes), *finish.helpers, finish.function, kernel)


def _constants(convolution: Convolution, axes: dict[str, Window]) -> list[str]:
    return [f"constexpr int GROUPS = {convolution.groups};", *(one.constants(axis) for axis, one in axes.items())]


def _body(convolution: Convolution, axes: dict[str, Window], finished: str) -> list[str]:
    lines = [
        "const long long at = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;",
        "if (at >= results) return;",
        "long long rest = at;",
    ]
    for axis in reversed(axes):
        lines += [f"const int at_{axis} = static_cast<int>(rest % y_{axis});", f"rest /= y_{axis};"]
    dtype = convolution.output.dtype
    stored = finished if dtype is DType.F32 else f"static_cast<{dtype.cpp}>({finished})"
    return [
        *lines,
        "const long long row = rest;  // of all images' filters",
        "const int channel = static_cast<int>(row % (GROUPS * filters));  // of the result",
        "const int group = channel / filters;",
        "const long long image = row / (GROUPS * filters);",
        f"x += (image * GROUPS + group) * channels * {_product('x', axes)};",
        *_weight_lines(convolution),
        "float sum = 0.0f;",
        "for (int c = 0; c < channels; ++c) {",
        "  float part = 0.0f;  // a short sum of its own: long ones round more",
        *indented(_taps(convolution, axes)),
        "  sum += part;",
        f"  x += {_product('x', axes)};",
        f"  weight += {'filters * TAPS' if convolution.transposed else 'TAPS'};",
        "}",
        f"y[at] = {stored};",
    ]


def _product(kind: str, axes: dict[str, Window]) -> str:
    first, *rest = (f"{kind}_{axis}" for axis in axes)
    return " * ".join([f"static_cast<long long>({first})", *rest]) if rest else first


def _weight_lines(convolution: Convolution) -> list[str]:
    taps = f"constexpr int TAPS = {convolution.taps};  // of the window in all its dimensions"
    if convolution.transposed:
        begin = "(static_cast<long long>(group) * channels * filters + channel % filters) * TAPS"
    else:
        begin = "static_cast<long long>(channel) * channels * TAPS"
    return [taps, f"weight += {begin};"]


def _taps(convolution: Convolution, axes: dict[str, Window]) -> list[str]:
    """Loops over the window, the innermost of which adds a product."""
    place, tap = "", ""
    for axis in axes:
        place = f"{_bracketed(place)} * x_{axis} + from_{axis}" if place else f"static_cast<long long>(from_{axis})"
        tap = f"{_bracketed(tap)} * TAPS_{axis.upper()} + tap_{axis}" if tap else f"tap_{axis}"
    body = [
        f"const float from_x = x[{place}], from_weight = weight[{tap}];",
        "part = fmaf(from_x, from_weight, part);",
    ]
    for axis in reversed(axes):
        upper = axis.upper()
        if convolution.transposed:
            found = [
                f"const int over_{axis} = at_{axis} + PADDING_{upper} - tap_{axis} * DILATION_{upper};",
                f"const int from_{axis} = over_{axis} / STRIDE_{upper};",
                f"if (over_{axis} < 0 || over_{axis} % STRIDE_{upper} != 0 || from_{axis} >= x_{axis}) continue;",
            ]
        else:
            begin = f"at_{axis} * STRIDE_{upper} - PADDING_{upper}"
            found = [
                f"const int from_{axis} = {begin} + tap_{axis} * DILATION_{upper};",
                f"if (from_{axis} < 0 || from_{axis} >= x_{axis}) continue;",
            ]
        body = [
            f"for (int tap_{axis} = 0; tap_{axis} < TAPS_{upper}; ++tap_{axis}) {{",
            *indented([*found, *body]),
            "}",
        ]
    return body


def _bracketed(text: str) -> str:
    return f"({text})" if " * " in text else text
