"""What becomes of the first operand's rows in the registers that multiply them, as words of the kernel's text.

They are f32 in slots of shared memory. Consumers scale and split them; or, where they are scores, split the powers that
their softmax is made of: a kernel between two products read and wrote all scores once more. On an H200 that took
attention of 1024 heads with 512 rows of 1024 numbers from 8.06 to 6.96 ms, with less waiting in both products.
"""

from __future__ import annotations

from tilewright.playbook.gemms.hopper_form import Form
from tilewright.playbook.templates import sections

_CUDA = sections("gemms/hopper_rows")

_SCALES = "const float row_scale[2] = {1.f / scale[0], 1.f / scale[1]};"


def _taken(number: str) -> str:
    """A statement that makes four numbers of a row what is split: `number` with @ for one of them."""
    four = ", ".join(number.replace("@", f"x[r][h].{one}") for one in "xyzw")
    return f"    x[r][h] = make_float4({four});"


# What becomes of a where b is split by this kernel too, in an order of its own; and where b is ready.
_SPLIT_BOTH = {
    "row": _CUDA["split_both_row"],
    "done": "step",
    "and_done": "",
    "which": "which",
    "b_slots": "part_slots",
    "columns": "const uint32_t my_columns = scales;",
    "column_stores": "",
    "read": "shared_float4(from + i / 2 * 8 * 128 + ((i % 2 * 4 + lane % 4) ^ row % 8) * 16)",
    "split_a": _CUDA["find_scales"] + _CUDA["split_a_rows"].replace("@taken", _taken("@ * scale[r]")),
    "of_two_rows": "scale[2] = {}",
    "before": "",
    "row_scales": _SCALES,
    "free_a": """\
  __syncwarp();
  if (lane == 0) barrier_arrive(empty + step % SLOTS * 8);""",
    "b_slot": """\
  barrier_wait(split_done + step % PART_SLOTS * 8, step / PART_SLOTS % 2);
  const uint64_t b_slot = b_slots + (step % PART_SLOTS * 2 * PART_BYTES >> 4);""",
    # Nobody waits for the last slots, and the other block may end.
    "free_b": """\
thread < CLUSTER && step < tile.steps - PART_SLOTS)
      free_parts(used + step % PART_SLOTS * 8, thread, rank)""",
    "done_all": _CUDA["split_both_done_all"],
}
_SPLIT_A = {
    "row": _CUDA["split_a_row"],
    "done": "done",
    "and_done": ", ++done",
    "which": "(long long)tile.z * (tile.tiles_m + tile.tiles_n) + tile.m0 / BM",  # its row's
    "b_slots": "slots + A_BYTES",
    "columns": _CUDA["split_a_columns"],
    "column_stores": """\
unrolled for (int i = 0; i < BN / 128; ++i)
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(my_columns + (thread + i * 128) * 4), "f"(of_column[i]) : "memory");""",
    "read": "two_pairs(from + i / 2 * 8 * 128 + lane % 2 * 8, (i % 2 * 4 + lane % 4 / 2) ^ row % 8)",
    "split_a": _CUDA["split_a_split_a"],
    "free_a": "",
    "b_slot": "  const uint64_t b_slot = b_slots + (done % SLOTS * SLOT_BYTES >> 4);",
    "free_b": "lane == 0) barrier_arrive(empty + done % SLOTS * 8)",
    "done_all": "consumer_sync(consumer);",
    "of_two_rows": "scale[2] = {}",
    "before": "",
    "row_scales": _SCALES,
}
# Where a has scores, and their softmax is multiplied: powers of what is below the greatest of a row, which needs no
# other scale. Rows are divided by the sums of those powers when all is multiplied.
_WEIGHTS = {
    "of_two_rows": "total[2] = {}, most[2]",
    "before": _CUDA["weights_before"],
    "split_a": _CUDA["weights_split_a"]
    + _CUDA["split_a_rows"].replace(
        "@taken",
        _taken("power(@, most[r])") + "\n    total[r] += (x[r][h].x + x[r][h].y) + (x[r][h].z + x[r][h].w);",
    ),
    "row_scales": _CUDA["weights_row_scales"],
}
# The same, where a row of minus infinities has no weights.
_NO_WEIGHTS = {
    "before": _WEIGHTS["before"].replace(
        "  if (m", "  if (most[r] == -INFINITY) most[r] = 0.f;  // so powers are 0\n  if (m"
    ),
    "row_scales": _CUDA["no_weights_row_scales"],
}
POWERS = _CUDA["powers"]


def row_words(form: Form) -> dict[str, str]:
    """What @words of the kernel's text stand for, as the second operand's parts are made, and as rows are scores."""
    weights = {**_WEIGHTS, **(_NO_WEIGHTS if form.product.empty_rows else {})} if form.product.weighs else {}
    return {**(_SPLIT_A if form.ready_b else _SPLIT_BOTH), **weights}
