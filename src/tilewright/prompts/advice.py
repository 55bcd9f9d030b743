"""The advice of the prompts as cards that stand alone: by kind of work, and by GPU family."""

from __future__ import annotations

from tilewright.prompts.question import family_of
from tilewright.prompts.rendering import idiom, render, render_with_idioms
from tilewright.prompts.task_text import PRODUCT_KINDS
from tilewright.records import PROFILES, Kind, Precision

GPU_FAMILIES = tuple(sorted({family_of(one.cc) for one in PROFILES.values()}))
_SMS = 132  # of a Hopper GPU
_TILES = 4 * _SMS


def card(kind: Kind) -> str:
    """The advice for a kind of work with 16-bit inputs and large sizes, and its tested patterns."""
    advice, idioms = render_with_idioms(
        f"kinds/{kind.value}",
        half=True,
        per_row=True,
        precision=Precision.DTYPE.value,
        tiles=_TILES if kind in PRODUCT_KINDS else 0,
        sms=_SMS,
        cute=False,
        hopper=True,
        few_long=None,
        columns=False,
    )
    patterns = [f"Tested pattern `{name}`:\n\n```cuda\n{idiom(name)}\n```" for name in idioms]
    return "\n\n".join([f"# {kind.value}", advice, *patterns]) + "\n"


def family_card(family: str) -> str:
    """The advice for a GPU family: for matrix products, and for everything else."""
    other, products = (render(f"families/{family}", products=products, large=products) for products in (False, True))
    parts = [f"# {family}", other]
    return "\n\n".join(parts if products == other else [*parts, "## Matrix products", products]) + "\n"


def advice_lines(kind: Kind) -> tuple[str, ...]:
    """The sentences and bullets of a card, without its patterns."""
    text = card(kind).partition("Tested pattern")[0]
    lines = (line.strip().removeprefix("- ") for line in text.splitlines()[1:])
    return tuple(line for line in lines if line)
