"""Convolutions as people say them: brought to one order of numbers first, as poolings are, then named operations."""

from __future__ import annotations

import re

from tilewright.playbook.errors import NotUnderstood
from tilewright.playbook.named_operation import UNKNOWN, WHOLE_NUMBER, DimensionOf, Effect, NamedOperation, Tensor
from tilewright.records import DType

_KINDS = r"(?:(?:causal|depth ?wise|point ?wise|transposed?|dilated|strided|standard|plain|[123] ?d|\d+(?:x\d+)+) )*"
_SETTING_WORDS = r"kernels?|windows?|size|strides?|padding|dilation|bias|without|no"
_REST = rf"(?:[ (=,]|\b(?:with|of|and|using|an?|same|{_SETTING_WORDS})\b|\b\d+(?:x\d+)*\b)"
_CONVOLUTION = re.compile(
    rf"(?P<kinds>{_KINDS})\b(?P<back>de ?)?conv(?:olution(?:al)?|olve)?(?P<turned> ?transpose)? ?"
    rf"(?P<rank>[123](?= ?d\b))?(?: ?d\b)?(?P<rest>{_REST}*)\)?"
)
_SETTING = re.compile(r"(strides?|padding|dilation)[ =]*(?:of |size )?(same|\d+(?:x\d+)*)")
_BIAS = re.compile(r"(?:(without|no) |with )?(?:an? )?bias")
_OUT = r"(?:channels?|filters?|features?)"
_CHANNELS = (  # of x, of the result, or of both
    (
        rf"(?:\bfrom )?\b(\d+) (?:(?:input )?channels? )?(?:to|into|->) (\d+) (?:output )?{_OUT}\b",
        ("channels", "filters"),
    ),
    (r"(?<![x\d])\b(\d+) ?-> ?(\d+)\b", ("channels", "filters")),
    (
        r"\b(\d+) (?:channels? in|in(?:put)? channels?|in)\b,? (?:and )?(\d+) out\b(?! ?channels?)",
        ("channels", "filters"),
    ),
    (r"(?:\b(?:of|with|for|on) )?(?:\ba )?(?<!sequence )(?<!seq )\blength (?:of )?(\d+)\b", ("length",)),
)
_SHAPE_OF_X = re.compile(
    r"\b(?:on|for|of)(?: an?)?(?: input| tensor)?(?: of)? (\d+(?:x\d+){3,})(?: inputs?| tensor)?\b"
)
_MOST_PLACES = 3  # that a window goes over
_USUAL_WINDOW = 15  # beyond it a number by itself is hardly one
_CODE = re.compile(  # Conv2d(64, 128, 3, padding=1), Conv2d(64, 128, 3, 2, 1)
    r"\b(?P<name>conv(?:transpose| transpose)?[123]d)\((?P<channels>\d+), ?(?P<filters>\d+), ?(?:kernel size ?= ?)?"
    r"(?P<side>\d+)(?:, ?(?P<stride>\d+)(?=[,)]| w))?(?:, ?(?P<padding>\d+)(?=[,)]| w))?"
)


# What stands where a size of a window should, and is none: "padding -1", "stride 1.5", "conv2d -3".
_NO_SIZE = re.compile(
    r"\b(?P<name>kernel(?: size)?|window|stride|padding|dilation|conv(?:olution|(?:transpose)?[123]d)?|pool(?:ing)?)s?"
    r"(?:[ =]|\b(?:of|size)\b)*(?P<number>-\d[\dx.]*|\d+\.\d+)"
)


def refuse_no_sizes(text: str) -> None:
    """Raises `NotUnderstood` for a window, stride, padding or dilation that can be none."""
    found = _NO_SIZE.search(text)
    if found is not None:
        name = found["name"] if found["name"] in ("stride", "padding", "dilation") else "window"
        least = 0 if name == "padding" else 1
        number = found["number"].rstrip(".")
        raise NotUnderstood(f'a {name} is a whole number of at least {least}, and "{number}" is none; say another')


def one_window(said: str, sizes: list[str], rank: str | None) -> tuple[str, str]:
    """The window, "" where none is said, and the shape of x, which has a batch and channels too. Raises
    `NotUnderstood` for several windows, and for a number that may be no window."""
    places = min(int(rank or _MOST_PLACES) + 1, _MOST_PLACES)
    shapes = [f" {one}" for one in sizes if one.count("x") >= places]
    windows = [one for one in sizes if one.count("x") < places]
    if len(windows) > 1:  # "3x3 on 224x224"
        large = [one for one in windows if "x" in one and min(map(int, one.split("x"))) > _USUAL_WINDOW]
        shapes += [f" {one}" for one in large]
        windows = [one for one in windows if one not in large]
    said = said.strip()
    if len(windows) > 1:
        raise NotUnderstood(
            f'"{said}" says {" and ".join(windows)}; say which is the window, "stride 2" or "padding 1"'
        )
    bare = windows and "x" not in windows[0] and not re.search(r"kernel|window|size|of", said)
    if bare and int(windows[0]) > _USUAL_WINDOW:
        raise NotUnderstood(
            f'{windows[0]} in "{said}" could be channels or the window; say "{windows[0]} channels" or "kernel size '
            f'{windows[0]}"'
        )
    return "".join(windows), "".join(shapes)


def in_one_order(text: str) -> str:
    """Every convolution with its window, stride, padding and dilation in one order: `conv2 3 1 1 1`."""
    return _CONVOLUTION.sub(_ordered, text)


def channels_first(text: str) -> str:
    """How many channels there are before and after a convolution, said before it: "16 channels in, 32 out"; and along
    how many positions it goes, or a pooling."""
    if "conv" not in text and "pool" not in text:
        return text
    text = re.sub(r"\bconv1d causal\b", "causal conv1d", text)
    if len(shapes := _SHAPE_OF_X.findall(text)) == 1:  # which may stand before what else is said of the window
        text = f"{_SHAPE_OF_X.sub(' ', text)} on {shapes[0]}"
    named: list[str] = []
    for pattern, names in _CHANNELS:

        def taken(said: re.Match[str], names: tuple[str, ...] = names) -> str:
            named.extend(f"{name}={size}" for name, size in zip(names, said.groups(), strict=True))
            return " "

        text = re.sub(pattern, taken, text)
    text = re.sub(r"\b(\d+) filters? of (?:size )?(?=\d)", r"filters=\1 kernel ", text)
    text = _CODE.sub(_called, text)
    return " ".join((*named, text))


def _called(said: re.Match[str]) -> str:
    settings = "".join(f", {name} {said[name]}" for name in ("stride", "padding") if said[name])
    sizes = f"channels={said['channels']} filters={said['filters']}"
    return f"{sizes} {said['name']} (kernel {said['side']}{settings}"


def _ordered(said: re.Match[str]) -> str:
    kinds, rest = said["kinds"], said["rest"] or ""
    settings = {one[1].rstrip("s"): one[2] for one in _SETTING.finditer(rest)}
    bias = _BIAS.search(rest)
    plain = _BIAS.sub(" ", _SETTING.sub(" ", rest))
    early = re.search(r"([123]) ?d", kinds)
    sizes = [*re.findall(r"\d+(?:x\d+)+", kinds), *re.findall(r"\d+(?:x\d+)*", plain)]
    window, shape = one_window(said[0], sizes, said["rank"] or (early[1] if early else None))
    window = window or ("1" if "point" in kinds else "3")
    for name, one in (("window", window), *settings.items()):
        if len(set(one.split("x"))) > 1:
            raise NotUnderstood(f'the playbook reads a {name} with equal sides, and "{one}" has others; say one size')
    sides = window.split("x")
    causal = "causal" in kinds
    usual = "1" if causal else "2"
    rank = said["rank"] or (early[1] if early else str(len(sides)) if len(sides) > 1 else usual)
    if any(len(one.split("x")) not in (1, int(rank)) for one in (window, *settings.values())):
        raise NotUnderstood(f'"{said[0].strip()}" goes over {rank} dimensions, and does not say {rank} sizes; say one')
    kind = "depthconv" if "depth" in kinds else "conv"
    if "transpose" in kinds or said["turned"] or said["back"]:
        kind = kind.replace("conv", "backconv")
    if causal and (rank != "1" or "back" in kind or "padding" in settings):
        raise NotUnderstood(
            "a causal convolution goes over one dimension and pads before its first position, which needs no saying; "
            'say "causal conv1d with kernel size 4"'
        )
    side, stride, dilation = (
        one.split("x")[0] for one in (window, settings.get("stride", "1"), settings.get("dilation", "1"))
    )
    padding = settings.get("padding", "same" if re.search(r"\bsame\b", rest) else "0").split("x")[0]
    if causal:
        kind, padding = f"causal{kind}", str((int(side) - 1) * int(dilation))
    elif padding == "same":
        padding = _same(int(side), int(stride), int(dilation))
    without = " without" if bias and bias[1] else ""
    then = " then " if re.search(r"(?:\band|,)\s*$", rest) else " "
    return f" {kind}{rank} {side} {stride} {padding} {dilation}{without}{shape}{then}"


def _same(side: int, stride: int, dilation: int) -> str:
    if stride != 1 or dilation * (side - 1) % 2:
        raise NotUnderstood('padding "same" needs an odd window and a stride of 1; say the padding as a number')
    return str(dilation * (side - 1) // 2)


def _convolution(places: int, kind: str, bias: bool) -> NamedOperation:
    """Over the last `places` dimensions; the words are those that `in_one_order` writes."""
    inner = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}[places]
    depth, back, causal = "depth" in kind, "back" in kind, "causal" in kind
    taps = ("{0}",) * places
    sizes: tuple[DimensionOf, ...] = (
        (1, "1", *taps) if depth else (1, "filters", *taps) if back else ("filters", 1, *taps)
    )
    channels: DimensionOf = 1 if depth else "filters"
    extras = (Tensor("weight", sizes), *((Tensor("bias", (channels,)),) if bias else ()))
    value = "F.pad({v}, ({2}, 0))" if causal else "{v}"
    call = f"F.conv{'_transpose' * back}{places}d({value}, {{weight}}, {'{bias}' if bias else 'None'}"
    groups = ", groups={v}.shape[1]" if depth else ""
    named = f"a {'causal ' * causal}{'depthwise ' * depth}{'transposed ' * back}convolution"
    name = f"{'causal_' * causal}{'depthwise_' * depth}conv{'_transpose' * back}_{places}d"
    padding = "{2} before the first position" if causal else "{2} of padding"
    return NamedOperation(
        name,
        f"{named} with windows of {{0}}",
        rf"{kind}{places} {WHOLE_NUMBER} {WHOLE_NUMBER} {WHOLE_NUMBER} {WHOLE_NUMBER}{'' if bias else ' without'}",
        f"{call}, stride={{1}}, {'' if causal else 'padding={2}, '}dilation={{3}}{groups})",
        Effect.RESHAPES,
        extras,
        f"windows are {{0}} wide, {{1}} apart, with {padding} and a dilation of {{3}}; "
        + ("the convolution has a weight and a bias" if bias else "the convolution has a weight and no bias"),
        takes=Tensor("x", ("batch", "channels", *inner)),
        gives=(0, channels, *(UNKNOWN,) * places),
        whole=4,
        dtype=DType.F32 if places == 3 else None,  # as poolings are
        leads=True,
    )


CONVOLUTIONS: tuple[NamedOperation, ...] = tuple(
    _convolution(places, kind, bias)
    for kind in ("conv", "depthconv", "backconv", "depthbackconv", "causalconv", "causaldepthconv")
    for places in ((1,) if "causal" in kind else (1, 2, 3))
    for bias in (True, False)
)
