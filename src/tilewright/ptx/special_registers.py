"""Special registers: the interpreter's number of each, in the order of interpreter.h."""

from __future__ import annotations

_SPECIALS = (
    *("%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z"),
    *("%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z"),
    *("%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid"),
    *("%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt"),
    *("%clock", "%clock_hi", "%dynamic_smem_size", "%total_smem_size", "%zero", "%one", "%envreg1", "%envreg2"),
)
_SPECIAL_NUMBERS = {name: number for number, name in enumerate(_SPECIALS)}
_SAME_AS = {
    "%clock64": "%clock",
    "%globaltimer": "%clock",
    "%globaltimer_lo": "%clock",
    "%globaltimer_hi": "%clock_hi",
    "%aggr_smem_size": "%total_smem_size",
    "%is_explicit_cluster": "%zero",
    **{f"%cluster_ctaid.{axis}": "%zero" for axis in "xyz"},
    **{f"%cluster_nctaid.{axis}": "%one" for axis in "xyz"},
    **{f"%clusterid.{axis}": f"%ctaid.{axis}" for axis in "xyz"},
    **{f"%nclusterid.{axis}": f"%nctaid.{axis}" for axis in "xyz"},
    "%cluster_ctarank": "%zero",
    "%cluster_nctarank": "%one",
}


def special_number(name: str) -> int | None:
    """The interpreter's number of a special register; None: not known."""
    return _SPECIAL_NUMBERS.get(_SAME_AS.get(name, name))
