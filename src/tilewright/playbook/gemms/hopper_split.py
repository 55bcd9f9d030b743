"""How f32 operands become two f16 parts, as text.

A row of `a` (a column of `b`) is scaled by a power of two so that its largest magnitude lies in [2^14, 2^15). Then
high = f16(x) and low = f16(x - high) hold x to 2^-23 of itself, about as f32 does, or to 2^-40 of the largest where x
is more than 2^17 below that. A row in which that happens to more than a few elements is not computed so: one number far
above the rest of it may meet a zero, and then the rest is the result.
"""

from __future__ import annotations

import re

from tilewright.playbook.gemms.hopper_form import Form
from tilewright.playbook.templates import sections

_CUDA = sections("gemms/hopper_split")


def splitting_text(form: Form) -> list[str]:
    """The kernels that split the operands."""
    split = (form.product.b,) if form.ready_b else (form.product.a, form.product.b)
    kinds = {one.along_k for one in split}
    if form.short:  # `hopper_short` splits both at once
        return _CUDA["criterion"].splitlines()
    text = _CUDA["criterion"] + (_CUDA["span"] if form.sorted else "")
    text += ("\n" + _CUDA["rows"] if True in kinds else "") + ("\n" + _CUDA["columns"] if False in kinds else "")
    if form.sorted:
        return re.sub(r"@span ?", "", text).splitlines()
    return re.sub(r"(?m)^ *@span .*\n", "", text).splitlines()
