"""The text of a Hub package's `layers.py`: the op as the layer that `kernels.kernelize` puts into a model.

A layer has a `forward` of the replaced one's parameters and nothing else of its own. It brings the tensors into the
shape the kernel was made for; what the kernel does not take then runs the reference.
"""

from __future__ import annotations

from tilewright.exports.python_op import python_name
from tilewright.exports.recognition import LAYERS, Form, fitting_forms, recognise
from tilewright.exports.source import Source
from tilewright.exports.writing import NotExportable, rendered
from tilewright.records import TensorSpec

# The tanh formula goes by three names in transformers.
_SAME = {"GeluTanh": ("GeluTanh", "NewGELU", "FastGELU")}
ATTENTION = ("attention", "causal_attention")


def find_layer(source: Source, wanted: str = "") -> Form | None:
    """The layer asked for by name, or the one that the op is recognised as."""
    if not wanted:
        return recognise(source)
    if wanted not in LAYERS:
        raise NotExportable(f"--layer {wanted}: write one of {', '.join(LAYERS)}")
    recognised = recognise(source)
    if recognised is not None and recognised.layer == wanted:
        return recognised
    forms = fitting_forms(source, wanted)
    if not forms:
        raise NotExportable(f"--layer {wanted}: the parameters of {source.op.name} are not that layer's")
    return forms[0]


def layer_names(form: Form) -> tuple[str, ...]:
    """The classes that `layers.py` has."""
    return () if form.layer in ATTENTION else _SAME.get(form.layer, (form.layer,))


def layers_text(source: Source, form: Form, function: str, differentiable: bool) -> str:
    """The module `layers.py`, or `attention.py` for an attention."""
    template = "attention.py" if form.layer in ATTENTION else "layers.py"
    return rendered(
        f"hub/{template}",
        function=python_name(function),
        names=layer_names(form),
        kind=form.layer,
        roles=form.roles,
        call=_call(source, form),
        rank=_specs(source)[0].ndim,
        half_cosines=_half_cosines(source),
        trigonometry_rank=_trigonometry_rank(source),
        trigonometry_dtype=_specs(source)[-1].dtype.torch_name,
        differentiable=differentiable,
        causal=form.layer == "causal_attention",
        has_scale=form.number == "scale",
    )


def _call(source: Source, form: Form) -> str:
    """The op's arguments in its own order, by their roles."""
    roles = iter(form.roles)
    return ", ".join(form.number if one.scalar is not None else next(roles) for one in source.op.parameters)


def _specs(source: Source) -> list[TensorSpec]:
    return [value for value in source.calls[0].values() if isinstance(value, TensorSpec)]


def _half_cosines(source: Source) -> bool:
    specs = _specs(source)
    return len(specs) == 3 and specs[1].shape[-1:] != specs[0].shape[-1:]


def _trigonometry_rank(source: Source) -> int:
    specs = _specs(source)
    return specs[1].ndim if len(specs) == 3 else 0
