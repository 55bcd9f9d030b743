"""What the files of all convolutions have in common: sizes in the plan, constants of windows, parameters of kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, PlanLines
from tilewright.playbook.gemms.convolution_program import Convolution, Window
from tilewright.playbook.gemms.epilogue_text import RESERVED, EpilogueText, epilogue_text
from tilewright.playbook.gemms.plan_text import Choices, SumsText
from tilewright.records import DType

_AXES = ("x", "y", "z")
_WORDS = """
a_first a_lane a_slot again along_x along_y along_z at0 at_x at_y at_z b_first b_lane b_slot barriers barriers_of_parts
base before block bring brings brought by bytes cells channel channels channels_in channels_out column columns consumer
consumers copied_tile descriptor drained e empty entered entry f f0 filled filter filters first first_filter first_y
four from_line from_x from_y from_z full group have height here high i_x i_y i_z image images in_batch in_x in_y in_z
inverse is_inside is_lost is_small is_used k_pitch keep_step keep_weights larger last line line_tap lines loaded lost
low made made_value made_x made_y made_z matrix met mine most needs number of_consumer of_filter of_high of_image
of_line of_low of_plane of_step of_tile out_x out_y out_z owned pack packed pair part phase phase_x phase_y phase_z
piece place plane plane_in plane_out planes position positions q_x q_y q_z quarter rest result result_x result_y
results row row0 row_tiles rows run slots_at some source_x source_y source_z spread stage staged stands stands_x
stands_y stands_z step strip strips sums table tap tap_x tap_y tap_z taps taps_x taps_y taps_z target team there
tiles_x tiles_y to to_x to_y to_z total two unit units used value w_at w_stage warp weight weights width write_table
x_map y_height y_width
"""
_RESERVED = RESERVED | frozenset(_WORDS.split())


@dataclass
class ConvolutionText(SumsText):
    """The state of one convolution being written."""

    convolution: Convolution
    op_line: str
    choices: Choices = Choices.ALL

    def __post_init__(self) -> None:
        self.plan = PlanLines(self.convolution.epilogue, self.op_line)
        one, name = self.convolution, self.plan.name
        sizes = {"images": one.batch, "channels": one.channels, "filters": one.filters}
        for axis, window in self.axes.items():
            sizes |= {f"in_{axis}": window.length, f"out_{axis}": window.results}
        self.sizes = {wanted: name(wanted) for wanted in sizes}  # by what kernels call them
        for chosen in (("images", "channels", "filters"), *((f"in_{axis}", f"out_{axis}") for axis in self.axes)):
            self.plan.add("let", ", ".join(f"{self.sizes[one]} = {sizes[one].expression}" for one in chosen))
        self.plane_in = " * ".join(self.sizes[f"in_{axis}"] for axis in self.axes)
        self.plane_out = " * ".join(self.sizes[f"out_{axis}"] for axis in self.axes)

    @cached_property
    def axes(self) -> dict[str, Window]:
        """The windows, the innermost first."""
        return dict(zip(_AXES, reversed(self.convolution.windows), strict=False))

    @cached_property
    def epilogue(self) -> EpilogueText:
        return epilogue_text(self.convolution, reserved=_RESERVED)

    @property
    def elements(self) -> tuple[DType, ...]:
        return (self.convolution.element,)

    def places_fit(self) -> None:
        """That places in a plane fit an int, and a window's reach beside them."""
        self.plan.add("need", f"max({self.plane_in}, {self.plane_out}) <= {MOST_32_BIT}", "places fit an int")

    def window_constants(self, plain: bool = False) -> list[str]:
        """`plain`: those of the plain convolution that a transposed one of stride 1 is."""
        padded = self.convolution.plain_padding if plain else lambda one: one.padding
        windows = {axis: replace(one, padding=padded(one)) for axis, one in self.axes.items()}
        return [one.constants(axis, "KERNEL", "PAD") for axis, one in windows.items()]

    def parameters(self, *sizes: str) -> list[tuple[str, str]]:
        """Tensors, and the sizes that the kernel asks for: declarations and plan expressions."""
        one = self.convolution
        return [
            (f"const {one.element.cpp}* __restrict__ x", one.x),
            (f"const {one.element.cpp}* __restrict__ weight", one.weight),
            (f"{one.output.dtype.cpp}* __restrict__ y", one.output.name),
            *((f"int {size}", self.sizes[size]) for size in sizes),
            *self.epilogue.parameters,
        ]

    def packing(self, matrices: int, body: list[str]) -> list[str]:
        """The kernel that puts weights in the order of their use, `packed` with rows of `k_pitch`; it is launched."""
        cpp, name = self.convolution.element.cpp, f"{self.name}_pack"
        pairs = [
            (f"const {cpp}* __restrict__ weight", self.convolution.weight),
            (f"{cpp}* __restrict__ packed", "@packed"),
            *((f"int {size}", f"@{size}") for size in ("channels", "filters", "k_pitch")),
        ]
        return self.launched(name, f"dim3(ceil_div(@k_pitch * @filters, 256), {matrices})", "256", pairs, "256", body)

    def packed_parameters(self, *sizes: str) -> list[tuple[str, str]]:
        """Those of a kernel that reads such weights."""
        x, _, *others = self.parameters(*sizes)
        packed = (f"const {self.convolution.element.cpp}* __restrict__ packed", "@packed")
        return [x, packed, *others, ("int k_pitch", "@k_pitch")]

    @property
    def lengths(self) -> list[str]:
        """Of x and of y along every axis, by the kernels' names."""
        return [f"{side}_{axis}" for axis in self.axes for side in ("in", "out")]

    def weight_row(self, filter: str) -> str:
        """The number of the row of taps that channel c of its group has for a filter."""
        if self.convolution.transposed:
            return f"(group * channels + c) * static_cast<long long>(filters) + {filter}"
        return f"(group * filters + {filter}) * static_cast<long long>(channels) + c"

    def plane(self, side: str) -> str:
        """How many elements a plane of x ("in") or y ("out") has."""
        axes = [f"{side}_{axis}" for axis in reversed(self.axes)]
        return " * ".join([*axes[:-1], f"static_cast<long long>({axes[-1]})"])

    def place_in_plane(self, side: str, places: dict[str, str]) -> str:
        """The number of the element of a plane at these places along its axes."""
        text = ""
        for axis in reversed(self.axes):
            before = f"({text})" if " " in text else text
            text = f"{before} * {side}_{axis} + {places[axis]}" if text else places[axis]
        return text

    def column_stores(self, first: str, apart: str) -> list[str]:
        """Stores of staged sums at `column` of an image: those of BM filters from `first` on, `apart` lines apart."""
        epilogue, takes, several = self.epilogue, self.epilogue.takes, 8
        here = f"const int line = line0 + i * {apart};" if apart != "1" else "const int line = line0 + i;"
        kept = ["const int channel = group * filters + m0 + min(line, lines - 1);"] if "channel" in takes else []
        kept += ["const long long row = row0 + min(line, lines - 1);"] if "row" in takes else []
        next_lines = several if apart == "1" else f"{several} * ({apart})"
        each = ["#pragma unroll", f"  for (int i = 0; i < {several}; ++i) {{", f"    {here}"]
        return [
            "const long long row0 = (static_cast<long long>(image) * GROUPS + group) * filters + m0;",
            "auto* to = y + row0 * plane_out + column;",
            *epilogue.pointers("@ + row0 * plane_out + column"),
            "const int lines = min(BM, filters - m0);",
            "// Several at once: all that is read for them is asked for first, and none waits for the one before.",
            f"for (int line0 = {first}; line0 < lines; line0 += {next_lines}) {{",
            f"  float value[{several}];",
            *indented(epilogue.arrays(f"[{several}]")),
            *each,
            "    value[i] = line < lines ? staged[line * STAGED + at] : 0.0f;",
            *indented(epilogue.reads("[i]", "line < lines", "line * plane_out"), 2),
            "  }",
            f"  {self.convolution.output.dtype.cpp} made[{several}];",
            *(each if kept else each[:2]),
            *indented(kept, 2),
            f"    made[i] = {self.stored(epilogue.call_read('value[i]', '[i]'))};",
            "  }",
            *each,
            "    if (line < lines) to[line * plane_out] = made[i];",
            "  }",
            "}",
        ]
