"""The table of a kernel's parameter types: the C++ that makes it and the reading of it from the PTX.

PTX alone cannot tell a pointer from a 64-bit integer, nor int from unsigned, nor half from bfloat16.
"""

from __future__ import annotations

import re
import struct

from tilewright.records import KernelParameter, ParameterKind, PointeeKind
from tilewright.toolchain.errors import ToolchainError

_KINDS = (
    ParameterKind.OTHER,
    ParameterKind.POINTER,
    ParameterKind.CONST_POINTER,
    ParameterKind.BOOL,
    ParameterKind.SIGNED,
    ParameterKind.UNSIGNED,
    ParameterKind.FLOAT,
    ParameterKind.TENSOR_MAP,
)
_POINTEES = (PointeeKind.OTHER, PointeeKind.F16, PointeeKind.BF16)
_CELL = struct.Struct("<6i")

# NAMESPACE is replaced by a name the kernel file cannot contain. The numbers of `kind` and `pointee` index the
# two tuples above. An incomplete or void pointee has size and alignment 1, like bytes.
TABLE_TYPES = """\
namespace NAMESPACE {
template <class A, class B> inline constexpr bool same = false;
template <class A> inline constexpr bool same<A, A> = true;
template <class T> struct bare { using type = T; };
template <class T> struct bare<const T> { using type = T; };
template <class T> struct bare<volatile T> { using type = T; };
template <class T> struct bare<const volatile T> { using type = T; };
template <class T> struct pointer { static constexpr int kind = 0; using to = char; };
template <class T> struct pointer<T*> { static constexpr int kind = 1; using to = typename bare<T>::type; };
template <class T> struct pointer<const T*> { static constexpr int kind = 2; using to = typename bare<T>::type; };
template <class R, class... A> struct pointer<R (*)(A...)> { static constexpr int kind = 0; using to = char; };
template <class T, decltype(sizeof(T)) S = sizeof(T)> constexpr int size_of(int) { return S; }
template <class T> constexpr int size_of(...) { return 1; }
template <class T, decltype(sizeof(T)) S = sizeof(T)> constexpr int align_of(int) { return alignof(T); }
template <class T> constexpr int align_of(...) { return 1; }
template <class T> constexpr bool is_integer = same<T, char> || same<T, signed char> || same<T, unsigned char> ||
    same<T, short> || same<T, unsigned short> || same<T, int> || same<T, unsigned> || same<T, long> ||
    same<T, unsigned long> || same<T, long long> || same<T, unsigned long long>;
template <class T> constexpr int kind() {
  if constexpr (pointer<T>::kind != 0) return pointer<T>::kind;
  else if constexpr (same<T, bool>) return 3;
  else if constexpr (is_integer<T>) return T(-1) < T(0) ? 4 : 5;
  else if constexpr (same<T, float> || same<T, double>) return 6;
  else return same<T, CUtensorMap> ? 7 : 0;
}
template <class T> constexpr int pointee() {
  if constexpr (same<T, __half> || same<T, __half2> || same<T, cutlass::half_t>) return 1;
  else return same<T, __nv_bfloat16> || same<T, __nv_bfloat162> || same<T, cutlass::bfloat16_t> ? 2 : 0;
}
struct cell { int kind, size, align, pointee_size, pointee_align, pointee; };
template <class T> inline constexpr bool is_reference = false;
template <class T> inline constexpr bool is_reference<T&> = true;
template <class T> constexpr cell describe() {
  using to = typename pointer<T>::to;
  if constexpr (is_reference<T>) return {0, (int)sizeof(void*), (int)alignof(void*), 0, 0, 0};
  else if constexpr (pointer<T>::kind == 0) return {kind<T>(), (int)sizeof(T), (int)alignof(T), 0, 0, 0};
  else return {kind<T>(), (int)sizeof(T), (int)alignof(T), size_of<to>(0), align_of<to>(0), pointee<to>()};
}
template <class F> struct table { int count = -1; cell cells[1] = {}; };
template <class... A> struct table<void (*)(A...)> {
  int count = sizeof...(A); cell cells[sizeof...(A) + 1] = {describe<A>()..., cell{}};
};
}
"""

_ENTRY_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.[busf](\d+)\s+(?:\.ptr\s+[^,)]*?\s)?[\w$%]+(?:\[(\d+)\])?\s*(?:,|\)|$)"
)


def table_definition(namespace: str, table: str, kernel: str) -> str:
    """The line that defines one kernel's table: a device global by `-default-device`.

    Not in constant memory, which is the kernel file's to fill.
    """
    return f'extern "C" const {namespace}::table<decltype(&{kernel})> {table}{{}};'


def read_signature(ptx: str, table: str) -> tuple[KernelParameter, ...] | None:
    """The parameters in a table, or None where the name is no function that returns void."""
    found = re.search(rf"\.global\s+\.align\s+4\s+\.b8\s+{table}\[(\d+)\](?:\s*=\s*\{{([^}}]*)\}})?\s*;", ptx)
    if found is None:
        raise ToolchainError(f"the compiled module lacks the table {table}; this is a defect of the toolchain part")
    # Trailing zeros are not written, and a table of nothing but zeros has no initialiser at all.
    content = bytes(int(number) for number in (found.group(2) or "0").split(","))
    content += bytes(int(found.group(1)) - len(content))
    (count,) = struct.unpack_from("<i", content)
    if count < 0:
        return None
    return tuple(_parameter(_CELL.unpack_from(content, 4 + _CELL.size * index)) for index in range(count))


def _parameter(cell: tuple[int, ...]) -> KernelParameter:
    kind, size, align, pointee_size, pointee_align, pointee = cell
    return KernelParameter(_KINDS[kind], size, align, pointee_size, pointee_align, _POINTEES[pointee])


def check_against_entry(parameters: tuple[KernelParameter, ...], declaration: str, symbol: str) -> None:
    """The table and the PTX entry must agree on every size; they cannot differ unless something is broken."""
    sizes = [int(array) if array else int(bits) // 8 for bits, array in _ENTRY_PARAMETER.findall(declaration)]
    if sizes != [parameter.size for parameter in parameters]:
        raise ToolchainError(
            f"{symbol}: the PTX takes parameters of {sizes} bytes, the signature table says "
            f"{[parameter.size for parameter in parameters]}; this is a defect of the toolchain part"
        )
