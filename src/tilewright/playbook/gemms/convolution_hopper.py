"""Convolutions for Hopper (sm_90a), as kernel files: products of weights with shifted rows of a copied input."""

from __future__ import annotations

from tilewright.playbook.file_text import MOST_32_BIT, Fragment, PlanLines, fragment, includes
from tilewright.playbook.gemms.convolution_hopper_channels import MOST_ROWS, ChannelsText, can_follow
from tilewright.playbook.gemms.convolution_hopper_copies import (
    FILLED_BY_BLOCK,
    NOTE_ROWS,
    copy_parameters,
    copy_text,
    exact_parameters,
    exact_text,
    fill_parameters,
    fill_text,
    pack_parameters,
    pack_text,
)
from tilewright.playbook.gemms.convolution_hopper_geometry import NAMES, Geometry
from tilewright.playbook.gemms.convolution_hopper_kernel import (
    COPY_BYTES,
    before_first,
    constants,
    device_text,
    job_text,
    kernel_parameters,
    known_constants,
    sector,
)
from tilewright.playbook.gemms.convolution_program import Convolution
from tilewright.playbook.gemms.epilogue_text import RESERVED, epilogue_text
from tilewright.playbook.gemms.hopper_form import Parameters
from tilewright.playbook.gemms.plan_text import Choices
from tilewright.records import DType

_ELEMENTS = (DType.F32, DType.F16, DType.BF16)
_MOST_WIDTH_BLOCKS = 16
_WORDS = """
again ahead arrived block channel channels channel_blocks copied copied_map copy_rows depth first first_at from_weight
from_x filter filters height here image image_of_x in_plane jobs line lengths mine my_places my_scales next_filter noted
packed place places position reach ready row_of row_tiles scales slice staged value weight_map width y_depth y_height
y_width to_come x_depth x_height x_width y_at_depth y_at_height y_at_width few is_noted looked parts some
all c channel_of consumer f0 four line_rows lines my_turn of_columns of_row of_warps others plane r slice_tiles thread
tile_step upper
"""
_RESERVED = RESERVED | frozenset(_WORDS.split())
_HEADER = """
A convolution for Hopper, as a product of weights with positions. The input is copied with channels last and zeros
around it, so that all positions of the batch are one index, and a tap is a constant distance along it.

One thread of a producer warpgroup fills a ring of slots in shared memory with positions; taps along the width read the
same slot, further on. Another brings weights. Two consumer warpgroups multiply with wgmma, filters times positions, in
turn: one stores while the other multiplies.
"""
_AHEAD_HEADER = """
Two warps of every block copy the input, ahead of what is multiplied, so that memory and tensor cores work at once and
what was copied is read from the cache. Blocks wait for each other's pieces of the copy: all of them run at once.
"""
_CHANNELS_HEADER = """
A tile has all channels of its positions. What is done over those is done in registers before anything is stored, with
shuffles and a little shared memory between the warps.
"""
_F16_HEADER = """
f32 is rounded to f16, which has the ten bits that TF32 has, and twice its speed; weights are scaled by a power of two.
Numbers that f16 does not hold are noted while copying, and what they meet is made again in f32.
"""
_PARTS_HEADER = """
Every f32 is two f16 numbers, a high and a low part, and three products of parts give what f32 arithmetic gives: k has
three elements for a channel. Tensor cores cut bits off when they add, so that sums of one row of taps are added up in
f32 outside them. Numbers whose parts are not as exact are noted while copying, and what they meet is made again in f32.
"""


def can_write(convolution: Convolution) -> bool:
    """Whether these files take a convolution at the task's own sizes."""
    one = convolution
    tensors = {one.output.dtype, *(each.dtype for each in one.epilogue_inputs)}
    if one.element not in _ELEMENTS or one.is_depthwise or not tensors <= set(_ELEMENTS):
        return False
    if any(each.varies and each.parts == () for each in one.epilogue_inputs):
        return False
    if one.across is not None and not can_follow(one, one.across):
        return False
    geometry = Geometry(one)
    return geometry.rows_of_filter <= 8 and geometry.width_blocks <= _MOST_WIDTH_BLOCKS


def hopper_convolution(convolution: Convolution, op_line: str, choices: Choices = Choices.ALL) -> Fragment:
    """The convolution by TMA and wgmma."""
    geometry = Geometry(convolution)
    epilogue = epilogue_text(convolution, suffix="_given", reserved=_RESERVED)
    channels = ChannelsText(geometry, epilogue, _RESERVED) if convolution.across is not None else None
    plan = _Plan(geometry, channels, op_line, choices)
    plan.write(
        copy_parameters(geometry),
        pack_parameters(geometry),
        fill_parameters(geometry, epilogue),
        kernel_parameters(geometry, epilogue, channels),
        exact_parameters(geometry, epilogue, channels),
    )
    f32 = convolution.element is DType.F32
    more = ["cuda_bf16.h"] if geometry.copied is DType.BF16 else ["cuda_fp16.h"]
    programs = [one for one in (convolution.epilogue, convolution.across) if one is not None]
    included = sorted({*(line for one in programs for line in includes(one)), *(f"#include <{one}>" for one in more)})
    return fragment(
        _HEADER
        + (_AHEAD_HEADER if geometry.is_copied_ahead else "")
        + (_CHANNELS_HEADER if channels else "")
        + (_PARTS_HEADER if convolution.is_exact else _F16_HEADER if f32 else ""),
        plan,
        included,
        constants(geometry),
        job_text(geometry),
        copy_text(geometry),
        pack_text(geometry),
        *epilogue.helpers,
        epilogue.function,
        *([fill_text(geometry, epilogue)] if geometry.is_filled else []),
        *(channels.helpers if channels else ()),
        device_text(geometry, epilogue, channels),
        exact_text(geometry, epilogue, channels),
    )


class _Plan(PlanLines):
    def __init__(self, geometry: Geometry, channels: ChannelsText | None, op_line: str, choices: Choices) -> None:
        super().__init__(geometry.convolution.epilogue, op_line)
        self._geometry, self._channels, self._choices = geometry, channels, choices

    def _launch(self, kernel: str, grid: str, block: str, parameters: Parameters, how: str = " pdl") -> None:
        self.launch(kernel, grid, block, [one for _, one in parameters], how)

    def write(
        self, copy: Parameters, pack: Parameters, fill: Parameters, product: Parameters, again: Parameters
    ) -> None:
        geometry = self._geometry
        self._own_sizes()
        self._shape()
        self._shared_memory()
        self._buffers()
        groups, per = geometry.convolution.groups, 64 // geometry.rows_of_filter
        depth, height, _ = geometry.axes
        packed = f"{groups} * @row_tiles * MI * {per}" + (f" / {kinds}" if (kinds := geometry.row_kinds) > 1 else "")
        elements = f"@blocks * {kinds * geometry.rows_of_filter} * @row_bytes / 2"
        self._launch("pack_weights", f"dim3({packed}, min(16, ceil_div({elements}, 1024)))", "256", pack, how="")
        flat, outer = f"@copy_rows * {geometry.width_phases}", depth.modulus * height.modulus
        if geometry.planes:
            grid = f"dim3(ceil_div({flat}, 256), {outer})"
        else:
            together = 1024 if geometry.parts == 1 else 512
            grid = f"dim3(ceil_div({flat}, {together} / CHUNKS), {outer}, ceil_div(@chunks, CHUNKS))"
        if not geometry.is_copied_ahead:
            self._launch("copy_input", grid, "256", copy)
        if geometry.is_filled:
            results = f"@batch * {groups} * @filters * @y_depth * @y_height * @y_width"
            self._launch("fill_result", f"ceil_div({results}, {FILLED_BY_BLOCK})", "256", fill)
        fixed = f"{groups} * @row_tiles"
        whole = f"max({fixed}, device.sms / ({fixed}) * {fixed})"
        blocks = f"min(@jobs / KINDS_OF_BLOCK, {whole} if RESIDENT else device.sms)"
        how = " cooperative" if geometry.is_copied_ahead else " pdl"  # blocks that copy wait for each other
        self._launch("convolve", blocks, "384, @smem", product, how)
        shares = f"{max(1, per // 8)} * MI"
        self._launch("convolve_again", f"dim3(min(@jobs, ceil_div(device.sms * 2, {shares})), {shares})", "256", again)

    def _own_sizes(self) -> None:
        one = self._geometry.convolution
        self.add(
            "let",
            f"@batch = {one.batch.expression}, @channels = {one.channels.expression}, "
            f"@filters = {one.filters.expression}",
        )
        axes = dict(zip(NAMES, self._geometry.axes, strict=True))
        self.add("let", ", ".join(f"@x_{name} = {axis.window.length.expression}" for name, axis in axes.items()))
        self.add("let", ", ".join(f"@y_{name} = {axis.window.results.expression}" for name, axis in axes.items()))
        self.add("need", "device.cc == 90 and @batch > 0 and @filters > 0 and @channels > 0")
        self.add("need", "min(@x_depth, @x_height, @x_width, @y_depth, @y_height, @y_width) > 0")
        rows = []
        for name, axis in axes.items():
            length = f"@x_{name}" + (f" {'+-'[axis.margin < 0]} {abs(axis.margin)}" if axis.margin else "")
            stored = f"ceil_div({length}, {axis.modulus})" if axis.modulus > 1 else length
            made = f"ceil_div(@y_{name}, {axis.phases})" if axis.phases > 1 else f"@y_{name}"
            rows.append(f"@{name} = max({stored}, {made}{f' + {axis.more_rows}' if axis.more_rows else ''})")
        self.add("let", ", ".join(rows), "rows of the copied input")

    def _shape(self) -> None:
        geometry = self._geometry
        one, wide = geometry.convolution, f"{geometry.positions} / MI"
        parts, held = geometry.parts, "@channels"
        if parts > 1:
            held = "@held"
            each = "@channels" if geometry.planes else "round_up(@channels, 8)"
            self.add("let", f"@held = {each} * {parts}", "elements of k for a group's channels")
        rows = f"@filters * {geometry.rows_of_filter}" if geometry.rows_of_filter > 1 else "@filters"
        most = f"4 if {rows} > 128 else " if self._channels else ""
        tile = f"a tile is 64 * MI rows of filters by {wide} positions"
        narrow = "1" if geometry.has_narrow_tiles else f"{most}2 if {rows} > 64 else 1"
        if geometry.row_kinds > 1:
            narrow = "1"
        self.add("const", f"MI = {narrow}", tile)
        if geometry.row_kinds > 1:
            fit = f"{rows} <= {64 // geometry.row_kinds}"
            self.add("need", fit, f"{geometry.row_kinds} kinds of results are rows of one product")
        if self._channels:
            self.add("need", f"{rows} <= {MOST_ROWS}", "a tile has all channels of its positions")
            self.add("const", f"EVERY = {rows} == 64 * MI", "all rows of a tile are those of filters")
        if geometry.rows_of_filter > 4:
            self.add("need", "MI > 1", "a warp puts all rows of a filter in order at once")
        if geometry.planes:
            held_most = 4 if geometry.fold == 2 else 8 + geometry.rest if geometry.rest else 8 * geometry.planes
            self.add("need", f"{held} <= {held_most}")
            self.add("const", f"STEPS = {geometry.planar_steps}", "sixteens of k in a slot")
            self.add("let", "@channel_blocks = 1")
        else:
            self.add("const", f"STEPS = ceil_div(ceil_div({held}, 16), ceil_div({held}, 64))", "of 16 channels")
            self.add("let", f"@channel_blocks = ceil_div({held}, STEPS * 16)")
            self.add(
                "let",
                f"@chunks = {one.groups} * ceil_div(@channels, 8)",
                "of 16 bytes" if parts == 1 else "of 8 channels",
            )
            self.add("const", "CHUNKS = min(8, next_pow2(@chunks))")
            if not geometry.is_copied_ahead:
                self.add("const", "WHOLE = @channels % 8 == 0", "no chunk has fewer channels than it holds")
        tail = f"{geometry.tail_depth} * @height + {geometry.tail_height}"
        if geometry.planes:
            tail += f" + ceil_div({geometry.axes[2].reach // geometry.axes[2].modulus} + 1024, @width)"
        self.add("let", f"@copy_rows = (@batch * @depth * @height + {tail}) * @width", "with zeros behind the last")
        copies = geometry.width_phases * geometry.axes[0].modulus * geometry.axes[1].modulus
        self.add("let", f"@rows = @copy_rows{f' * {copies}' if copies > 1 else ''}")
        self.add("let", f"@row_tiles = ceil_div({rows}, 64 * MI)")
        made = f"ceil_div(@y_width, {geometry.phases})" if geometry.phases > 1 else "@y_width"
        self._overlap()
        others = sector(geometry) - 1  # results of a tile that the one before may store
        ended = (-(-one // geometry.phases) - (one - others) // geometry.phases for one in range(others))
        self.add("let", f"@shared = {max(ended)} + @width - {made}", f"positions of {others} results and a line's end")
        meet = f"OVERLAP and @shared <= 24 and @y_width >= {others}"
        self.add("let", f"@tile_step = {wide} - (@shared if {meet} else 0)")
        kinds = len(geometry.made)
        self._tiles()
        tiles = f"@tiles * {one.groups} * @row_tiles"
        self.add("let", f"@jobs = {tiles}{f' * {kinds}' if kinds > 1 else ''}")
        few = f"{kinds} if @jobs >= {2 * kinds} * device.sms else 1"
        self.add("const", f"KINDS_OF_BLOCK = {few if kinds > 1 else 1}", "that a block makes one after the other")
        self.add("need", f"@rows <= {MOST_32_BIT} and @jobs <= {MOST_32_BIT}", "so that an int holds them")
        for name, size in known_constants():
            self.add("const", f"{name} = {size}")

    def _tiles(self) -> None:
        """Tiles follow each other over all positions, or begin anew with every slice that has results."""
        depth, height, _ = self._geometry.axes
        slices, lines = f"ceil_div(@y_depth, {depth.phases})", f"ceil_div(@y_height, {height.phases})"
        self.add("let", "@at_once = ceil_div(@batch * @depth * @height * @width, @tile_step)")
        self.add("let", f"@of_slice = ceil_div({lines} * @width, @tile_step)")
        self.add("let", f"@by_slices = @batch * {slices} * @of_slice")
        self.add("let", "@slice_tiles = @of_slice if @by_slices < @at_once else 0")
        self.add("let", "@tiles = min(@at_once, @by_slices)")

    def _overlap(self) -> None:
        """Whether tiles meet where sectors of the result do, which pays where storing is most of the work."""
        geometry = self._geometry
        few = geometry.planes == 2 and geometry.convolution.filters.size > 64
        reduced = self._channels is not None and self._channels.is_reduced
        if self._choices is Choices.ALL and geometry.convolution.output.dtype is DType.F32 and not reduced:
            choices = "true | false" if few else "false | true"
            self.add("tune", f"OVERLAP = {choices}", "tiles meet where sectors of the result do, and share positions")
            ends = "@y_height * @y_width % 8 != 0 or @width * PHASES != @y_width"
            self.add("need", f"not OVERLAP or {ends.replace('PHASES', str(geometry.phases))}")
        else:
            self.add("const", "OVERLAP = false", "tiles need not meet where sectors of the result do")

    def _shared_memory(self) -> None:
        geometry, wide = self._geometry, f"{self._geometry.positions} / MI"
        row_bytes = "(32 if STEPS == 1 else 64 if STEPS == 2 else 128)"
        self.add("let", f"@row_bytes = {row_bytes}, @weight_bytes = 64 * MI * @row_bytes")
        staged = f"32 * min(MI, 2) * ({wide} + 8) * 4"
        if self._channels:
            staged += f" + 2 * {self._channels.kept * geometry.rows_of_filter} * ({wide}) * 4"
        if geometry.is_copied_ahead:
            whole = " and @channels % 8 == 0" if geometry.convolution.groups > 1 else ""
            self.add("need", f"@x_width % 4 == 0 and @chunks <= 8{whole}", "so that TMA takes boxes of all channels")
            pieces = f"ceil_div(@width + {before_first(geometry)}, 256 / CHUNKS)"
            self.add("let", f"@pieces_of_line = {pieces}", "that the input is copied in")
            self.add("let", f"@copy_bytes = {COPY_BYTES}", "what two warps have under way")
            staged += " + @copy_bytes"
        self.add("let", f"@room = device.smem_block - ({staged}) - 1024")
        blocks = sum(len(kind) for kind in geometry.kinds) * geometry.width_blocks
        self.add("let", f"@blocks = {blocks} * @channel_blocks", "of weights")
        one_kind = len(geometry.made) == 1
        least = 2 * len(geometry.slots) if geometry.by_halves else 2  # slots that are read at a time
        others = "4" if geometry.by_halves else "2" if geometry.is_copied_ahead else "(MI + 2)"
        self._slots(others if one_kind else "")
        resident = f"@blocks * @weight_bytes + {others} * @slot_bytes <= @room" if one_kind else "false"
        if one_kind and geometry.is_copied_ahead:  # all blocks run at once, and each has the weights of one tile
            resident += f" and {geometry.convolution.groups} * @row_tiles <= device.sms"
        self.add("const", f"RESIDENT = {resident}", "all weights of a block stay in shared memory")
        # Large slots are few, and their loads take long: a fourth is worth more than the last slots of weights.
        self.add("let", "@half = max(3, min(8, @room / 2 / @weight_bytes))", "slots of weights in half of the room")
        self.add("let", "@more = (@room - @half * @weight_bytes) / @slot_bytes + 1", "and one slot that does not fit")
        self.add("let", "@beside = (@room - @more * @slot_bytes) / @weight_bytes")
        self.add("const", "W_SLOTS = 1 if RESIDENT else @beside if @more <= 4 and @beside >= 4 else @half")
        self.add("let", "@w_bytes = (@blocks if RESIDENT else W_SLOTS) * @weight_bytes")
        self.add("const", "X_SLOTS = min(8, (@room - @w_bytes) / @slot_bytes)")
        self.add("need", f"X_SLOTS >= {least}")
        self.add(
            "let",
            f"@smem = @w_bytes + X_SLOTS * @slot_bytes + {staged} + (X_SLOTS + W_SLOTS) * 16 + 16",
        )

    def _slots(self, others: str) -> None:
        """The rows of a slot: for one tap of the height, or for all of them, where enough such slots fit and weights do
        not have to leave shared memory for it. `others`: slots beside weights that stay there."""
        geometry, wide = self._geometry, f"{self._geometry.positions} / MI"
        halo, row_bytes = geometry.halo, f"{16 * geometry.planes}" if geometry.planes else "@row_bytes"
        if geometry.more_lines:
            self.add("let", f"@lines_behind = {geometry.more_lines} * @width", "rows between taps of the height")
            self.add("let", f"@short_bytes = ({wide} + {halo + 15}) * {row_bytes} + 1024")
            self.add("let", f"@tall_bytes = @short_bytes + (@lines_behind + 8) * {row_bytes}")
            fits = f"@lines_behind <= 2 * ({wide}) and 3 * @tall_bytes + 4 * @weight_bytes <= @room"
            if others:
                stay = f"@blocks * @weight_bytes + {others} *"
                fits += f" and ({stay} @tall_bytes <= @room or {stay} @short_bytes > @room)"
            self.add("const", f"TALL = {fits}", "a slot serves all taps of the height")
            self.add("const", f"HALO = {halo} + (@lines_behind if TALL else 0)", "rows of a slot behind its positions")
        else:
            self.add("const", "TALL = false", "a slot is for one tap of the height")
            self.add("const", f"HALO = {halo}", "rows of a slot behind its positions")
        if geometry.planes:
            self.add("let", f"@slot_bytes = round_up({geometry.planes} * round_up({wide} + HALO, 8) * 16, 1024)")
        else:
            self.add("let", f"@boxes = ceil_div({wide} + HALO, 256)")
            self.add("let", f"@box_rows = round_up({wide} + HALO, 8 * @boxes) / @boxes")
            self.add("let", "@slot_bytes = round_up(@boxes * @box_rows * @row_bytes, 1024)")

    def _buffers(self) -> None:
        geometry = self._geometry
        kind = geometry.copied.value
        if geometry.planes:
            self.add("scratch", f"@copied: {kind}[{geometry.planes * geometry.convolution.groups} * @rows * 8]")
        else:
            self.add("scratch", f"@copied: {kind}[@rows, @chunks * {8 * geometry.parts}]")
            self.add("map", "@copied_map = tiled(@copied, box=[@box_rows, @row_bytes / 2], swizzle=@row_bytes, l2=256)")
        groups = geometry.convolution.groups
        self.add("scratch", f"@packed: {kind}[@blocks * {groups} * @row_tiles * 64 * MI, @row_bytes / 2]")
        self.add("map", "@weight_map = tiled(@packed, box=[64 * MI, @row_bytes / 2], swizzle=@row_bytes)")
        self.add("scratch", f"@scales: f32[{groups} * @row_tiles * 64 * MI]")
        self.add("scratch", f"@noted: i32[2 + ceil_div(@rows, {NOTE_ROWS})] zeroed", "whether any; weights; which rows")
        if geometry.is_copied_ahead:
            shape = f"@batch, {groups} * @channels, @x_depth * @x_height, @x_width"
            box = "1, 8 * CHUNKS, 1, 256 / CHUNKS"
            self.add("map", f"@x_map = tiled({geometry.convolution.x}, shape=[{shape}], box=[{box}])")
            counts = "@arrived: i32[ceil_div(@copy_rows / @width * @pieces_of_line, 4 * CHUNKS)] zeroed"
            self.add("scratch", counts, "pieces of the copied input that are there")
