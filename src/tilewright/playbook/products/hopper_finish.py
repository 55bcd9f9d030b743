"""What is done with a sum before it is stored, as a device function of numbers, and how a Hopper kernel gets those."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tilewright.playbook.cpp_helpers import QUICK_HELPERS
from tilewright.playbook.cpp_text import Forms, Namer, Statements, Text, indented
from tilewright.playbook.products.finish_text import RESERVED
from tilewright.playbook.products.program import Contraction, Triangle
from tilewright.playbook.row_program import COLS, Load, NumberKind, ProgramInput
from tilewright.records import DType

# Products finish their sums while nothing is multiplied, so what that costs shows. For results in bf16, whose roundings
# are eight times its error.
_GELU_OF_SUM = """\
// v times the normal curve's share below v, which is 1/2 + (1/2 - q) for positive v and 1/2 - (1/2 - q) for negative v,
// with q the share beyond |v|: 2 to a polynomial, to 2.5e-4 of itself. One slow instruction, where erf takes several.
__device__ __forceinline__ float gelu_of(float v) {
  const float x = fabsf(v);
  float t = fmaf(x, -2.33249967e-4f, 4.86971691e-3f), q;
  t = fmaf(x, t, -4.45985130e-2f);
  t = fmaf(x, t, -4.69682664e-1f);
  t = fmaf(x, t, -1.14625905f);
  t = fmaf(x, t, -1.00035951f);
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(q) : "f"(t));
  return fmaf(x, 0.5f - q, 0.5f * v);
}
"""

PAIRED = (DType.F32, DType.F16, DType.BF16)  # element types of which a kernel loads two neighbours at once

_VECTOR_PAIRS = {
    DType.F32: """\
__device__ __forceinline__ float2 pair_at(const float* row, int n, int N) {
  return n < N ? *reinterpret_cast<const float2*>(row + n) : make_float2(0.f, 0.f);
}
""",
    DType.F16: """\
__device__ __forceinline__ float2 pair_at(const __half* row, int n, int N) {
  return n < N ? __half22float2(*reinterpret_cast<const __half2*>(row + n)) : make_float2(0.f, 0.f);
}
""",
    DType.BF16: """\
__device__ __forceinline__ float2 pair_at(const __nv_bfloat16* row, int n, int N) {
  return n < N ? __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(row + n)) : make_float2(0.f, 0.f);
}
""",
}
_SINGLE_PAIR = """\
template <typename T> __device__ __forceinline__ float2 pair_at(const T* row, int n, int N) {
  return make_float2(n < N ? static_cast<float>(row[n]) : 0.f, n + 1 < N ? static_cast<float>(row[n + 1]) : 0.f);
}
"""


@dataclass(frozen=True)
class Finish:
    """The finish of a contraction: `finished(sum, ...)`, with the parameters that a kernel takes for it."""

    product: Contraction
    quick: bool = True

    @cached_property
    def _namer(self) -> Namer:
        return Namer(self.product.finish, RESERVED)

    @cached_property
    def _forms(self) -> Forms:
        return Forms(self.product.finish, self._namer, self.quick)

    @property
    def _numbers(self) -> list[tuple[str, str, str]]:
        """Kind, name and plan expression of every number known at the launch."""
        program = self.product.finish
        return [
            (program.kinds[program.values.index(number)].cpp, name, number.expression)
            for number, name in self._namer.parameters.items()
            if number != COLS
        ]

    @property
    def inputs(self) -> tuple[ProgramInput, ...]:
        """The tensors that are read for it."""
        read = {value.input for value in self.product.finish.values if isinstance(value, Load)}
        return tuple(one for one in self.product.finish_inputs if one.name in read)

    def pointer(self, one: ProgramInput) -> str:
        return f"{one.name}_given"

    @property
    def declared(self) -> list[str]:
        """Parameters of a kernel that finishes sums."""
        tensors = [f"const {one.dtype.cpp}* __restrict__ {self.pointer(one)}" for one in self.inputs]
        return tensors + [f"{kind} {name}" for kind, name, _ in self._numbers]

    @property
    def given(self) -> list[str]:
        """What the plan gives for them."""
        return [one.name for one in self.inputs] + [expression for _, _, expression in self._numbers]

    @cached_property
    def text(self) -> list[str]:
        """The function, and the functions it calls; nothing where sums are stored as they are."""
        if self.product.is_plain:
            return []
        program, target = self.product.finish, self.product.output.value
        known = {self.product.sum_value: Text("sum")}
        parameters = ["float sum"]
        for one in self.inputs:
            index = program.values.index(Load(one.name))
            known[index] = Text(self._namer.tensors[one.name])
            parameters.append(f"{program.kinds[index].cpp} {self._namer.tensors[one.name]}")
        parameters += [f"{kind} {name}" for kind, name, _ in self._numbers]

        def nothing_else(one: ProgramInput) -> str:
            raise AssertionError(f"{one.name} is a parameter")

        lines, texts = Statements(program, self._forms, self._namer).write((target,), known, nothing_else)
        cast = "" if program.kinds[target] is NumberKind.FLOAT else "(float)"
        function = [
            "// What becomes of a sum.",
            f"__device__ __forceinline__ float finished({', '.join(parameters)}) {{",
            *indented([*lines, f"return {cast}{texts[target].text};"]),
            "}",
        ]
        texts_called = self._forms.helpers()
        if self.product.output.dtype is DType.BF16:
            texts_called = [_GELU_OF_SUM if one == QUICK_HELPERS["gelu"] else one for one in texts_called]
        helpers = [line for text in texts_called for line in text.rstrip("\n").splitlines()]
        return [*helpers, *function]

    def pair_functions(self, vectors: bool) -> list[str]:
        """How neighbours are loaded: two at once where rows are whole numbers of pairs."""
        kinds = [one.dtype for one in self.inputs if one.varies]
        if not kinds:
            return []
        texts = [_VECTOR_PAIRS[kind] for kind in PAIRED if kind in kinds] if vectors else [_SINGLE_PAIR]
        note = (
            "// Elements n and n + 1 of a row of N, which are a whole number of pairs."
            if vectors
            else ("// Elements n and n + 1 of a row of N.")
        )
        return [note, *"".join(texts).rstrip("\n").splitlines()]

    def of_four(self, values: list[str]) -> list[str]:
        """Statements that make `v` of four sums: columns n and n + 1 of rows m[0] and m[1]; `values` are the sums."""
        lines: list[str] = []
        texts: list[list[str]] = [[value] for value in values]
        for one in self.inputs:
            name = self._namer.tensors[one.name]
            pointer = self.pointer(one)
            if one.is_column:
                lines.append(f"const float2 {name} = pair_at({pointer}, n, N);")
                for index, text in enumerate(texts):
                    text.append(f"{name}.{'xy'[index % 2]}")
            elif one.varies:
                for row in range(2):
                    lines.append(f"const float2 {name}_{row} = pair_at({pointer} + row_at[{row}] * N, n, N);")
                for index, text in enumerate(texts):
                    text.append(f"{name}_{index // 2}.{'xy'[index % 2]}")
            else:
                for index, text in enumerate(texts):
                    text.append(f"{name}_of_row[{index // 2}]")
        numbers = [name for _, name, _ in self._numbers]
        for index, text in enumerate(texts):
            value = text[0] if self.product.is_plain else f"finished({', '.join(text + numbers)})"
            lines.append(f"v[{index}] = {self._kept(value, f'm[{index // 2}]', f'n + {index % 2}')};")
        return lines

    def row_values(self) -> list[str]:
        """Statements that load what rows m[0] and m[1] have one number of each."""
        lines: list[str] = []
        for one in self.inputs:
            if one.varies:
                continue
            name, pointer = self._namer.tensors[one.name], self.pointer(one)
            at = ["0", "0"] if one.parts == () else ["row_at[0]", "row_at[1]"]
            read = ", ".join(f"static_cast<float>({pointer}[{place}])" for place in at)
            lines.append(f"const float {name}_of_row[2] = {{{read}}};")
        return lines

    def of_one(self, value: str) -> str:
        """The finished value of one sum, of column n and row m, which is row `row` of all matrices."""
        arguments = [value]
        for one in self.inputs:
            pointer = self.pointer(one)
            place = "n" if one.is_column else "row * N + n" if one.varies else "0" if one.parts == () else "row"
            arguments.append(f"static_cast<float>({pointer}[{place}])")
        arguments += [name for _, name, _ in self._numbers]
        text = value if self.product.is_plain else f"finished({', '.join(arguments)})"
        return self._kept(text, "m", "n")

    def _kept(self, value: str, m: str, n: str) -> str:
        kept = self.product.kept
        if kept is None:
            return value
        sign = ">=" if kept.triangle is Triangle.UPPER else "<="
        return f"{n} - {m} {sign} {kept.diagonal} ? {value} : 0.f"
