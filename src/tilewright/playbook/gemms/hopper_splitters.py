"""The warpgroups that load slots of f32 and split the second operand in shared memory, as text.

Blocks with tiles one below the other need the same of the second operand. Two of them make a cluster: each loads and
splits half of its columns, and copies the parts into the other's shared memory. On an H200 that took 256 x 524288 x 256
from 508 to 412 us, and 128 products of 512 x 1024 x 2048 from 1761 to 1521.
"""

from __future__ import annotations

from tilewright.playbook.gemms.hopper_form import Form
from tilewright.playbook.templates import sections

_CUDA = sections("gemms/hopper_splitters")


SPLITTER = _CUDA["splitter"]

_FROM_N = " + ((first + odd) * OWN + column) * 4"
# The second operand as it lies: what a splitter does with a slot of it. Consumers hold k in an order of their own.
_ALONG_N = {
    "splitters": "128",
    "shares": "OWN / 128",
    "splitter_registers": "56",  # 40 spill: 0.52 against 0.50 ms at 256 x 256 x 524288
    "consumer_registers": "224",
    "k_step": "16 * 128",
    "strides": "BOX_BYTES, 1024, SWIZZLE_128",
    "width": "WIDTH / 64 * BOX_BYTES",
    "scales_at": " + box * 64",
    "scales_by": " && first == 0",
    "scales_of": "64",
    "boxes": "constexpr int BOX_BYTES = BK * 64 * 2;  // of a part: BK rows of 64 columns",
    "place": _CUDA["along_n_place"],
    "from": _FROM_N,
    "share_at": " + box * BOX_BYTES + first * 128",
    "to": " + odd * 128 + ((lane % 16 / 2) ^ odd) * 16 + lane % 2 * 8",
    "scales": _CUDA["along_n_scales"],
    "groups": "2 * SHARES",
    "number": "from + group / 2 * 512 + (group % 2 * 4 + i) * 2 * OWN * 4",
    "split": _CUDA["along_n_split"].replace("@from", _FROM_N),
}
_ALONG_K = {
    "splitters": "CLUSTER > 1 ? 128 : 256",  # alone, 128 take 5 % longer at 128 x 32768 x 32768
    "shares": "OWN / (SPLITTERS / 2)",
    "splitter_registers": "CLUSTER > 1 ? 56 : 40",
    "consumer_registers": "CLUSTER > 1 ? 224 : 216",
    "k_step": "32",
    "strides": "16, 8 * BK * 2, SWIZZLE_64",
    "width": "WIDTH * BK * 2",
    "boxes": "",
    "scales_at": " + warp * 16 * SHARES",
    "scales_by": "",
    "scales_of": "16 * SHARES",
    "place": _CUDA["along_k_place"],
    "from": " + column * BK * 4 + (column % 8 ^ half * 4) * 16",
    "share_at": " + warp * SHARE_BYTES",
    "to": " + lane / 2 * BK * 2 + (column / 2 % 4 ^ half * 2) * 16",
    "scales": _CUDA["along_k_scales"],
    "groups": "SHARES",
    "number": "(from ^ i * 16) + group * 16 * BK * 4",
    "split": _CUDA["along_k_split"],
}


def splitter_words(form: Form) -> dict[str, str]:
    """What @words of the kernel's text stand for, as the second operand lies."""
    along_k = form.product.b.along_k
    k = "tile.k0 + step * BK" if form.pieces else "step * BK"
    n = "tile.n0 + rank * OWN"
    words = _ALONG_K if along_k else _ALONG_N
    return {**words, "along": k, "b_place": f"{k}, {n}" if along_k else f"{n}, {k}"}


def splitter_functions(form: Form) -> str:
    """What the splitters call."""
    return _CUDA["pair"] + (_CUDA["store_four"] if form.product.b.along_k else _CUDA["store_pair"])
