"""Assembles the translation unit around a kernel file's text, and its compile options.

Before the file come the prelude and the constants, after it one table per launched kernel with the types of its
parameters, which is read back from the PTX. `#line` directives around the file make all messages and debug information
use its own line numbers.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from dataclasses import dataclass

from tilewright.records import (
    KERNEL_FILE_NAME,
    BuildRequest,
    ConstantValue,
    DType,
    KernelParameter,
    ParameterKind,
    PointeeKind,
)
from tilewright.toolchain.nvrtc import ToolchainError

# Absolute, because the compiler prefixes relative names with the working directory, which would make builds differ; the
# folder does not exist, because it is searched for quoted includes.
PRELUDE_NAME = "/tilewright/prelude"
SIGNATURE_NAME = "/tilewright/signature"

_HEADERS = {
    DType.F16: "cuda_fp16.h",
    DType.BF16: "cuda_bf16.h",
    DType.F8E4M3: "cuda_fp8.h",
    DType.F8E5M2: "cuda_fp8.h",
}
# Names that need a header. `half` alone is not listed: it is a common identifier.
_HEADER_WORDS = {
    "cuda_fp16.h": re.compile(r"\b__half2?\b|\b__\w+2half\w*\b|\b__half2\w+\b"),
    "cuda_bf16.h": re.compile(r"\b(?:__)?nv_bfloat162?\b|\b__\w+2bfloat16\w*\b|\b__bfloat162\w+\b"),
    "cuda_fp8.h": re.compile(r"\b__nv_fp8\w*\b|\b__nv_cvt_\w+_to_fp8\w*\b"),
}
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)
# With only these, -minimal omits runtime-API and texture declarations: a fifth of a plain build.
_LIGHT_INCLUDES = frozenset({"cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "mma.h"})

# Macros and types available without an include. Repeated identical typedefs are legal. NVRTC cannot read cuda.h, which
# needs host headers; its guard is defined so that headers which include it get CUtensorMap from here.
_PRELUDE = """\
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t; typedef long long int64_t; typedef unsigned long long uint64_t;
typedef long long intptr_t; typedef unsigned long long uintptr_t; typedef decltype((char*)0 - (char*)0) ptrdiff_t;
#ifndef INFINITY
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#endif
#ifndef NAN
#define NAN __builtin_bit_cast(float, 0x7fffffff)
#endif
#define __cuda_cuda_h__
typedef struct CUtensorMap_st { alignas(128) unsigned long long opaque[16]; } CUtensorMap;
struct __half; struct __half2; struct __nv_bfloat16; struct __nv_bfloat162;
namespace cutlass { struct half_t; struct bfloat16_t; }
"""

# Device runtime API that NVRTC does not declare; no-ops below sm_90.
_DEPENDENT_LAUNCHES = {
    "cudaGridDependencySynchronize": "griddepcontrol.wait",
    "cudaTriggerProgrammaticLaunchCompletion": "griddepcontrol.launch_dependents",
}

# Typedefs of glibc's sys/types.h, which NVRTC lacks.
_SHORT_INTEGERS = {"uint": "unsigned int", "ushort": "unsigned short", "ulong": "unsigned long"}

_LIMIT_MACROS = {
    "FLT_MAX": "3.402823466e+38f",
    "FLT_MIN": "1.175494351e-38f",
    "FLT_EPSILON": "1.192092896e-07f",
    "DBL_MAX": "1.7976931348623157e+308",
    "DBL_MIN": "2.2250738585072014e-308",
    "DBL_EPSILON": "2.2204460492503131e-16",
    "CHAR_BIT": "8",
    "SCHAR_MIN": "(-128)",
    "SCHAR_MAX": "127",
    "UCHAR_MAX": "255",
    "SHRT_MIN": "(-32768)",
    "SHRT_MAX": "32767",
    "USHRT_MAX": "65535",
    "INT_MIN": "(-2147483647 - 1)",
    "INT_MAX": "2147483647",
    "UINT_MAX": "4294967295u",
    "LLONG_MIN": "(-9223372036854775807ll - 1)",
    "LLONG_MAX": "9223372036854775807ll",
    "ULLONG_MAX": "18446744073709551615ull",
    "INT8_MIN": "(-128)",
    "INT8_MAX": "127",
    "UINT8_MAX": "255",
    "INT16_MIN": "(-32768)",
    "INT16_MAX": "32767",
    "UINT16_MAX": "65535",
    "INT32_MIN": "(-2147483647 - 1)",
    "INT32_MAX": "2147483647",
    "UINT32_MAX": "4294967295u",
    "INT64_MIN": "(-9223372036854775807ll - 1)",
    "INT64_MAX": "9223372036854775807ll",
    "UINT64_MAX": "18446744073709551615ull",
    "M_E": "2.7182818284590452354",
    "M_LOG2E": "1.4426950408889634074",
    "M_LN2": "0.69314718055994530942",
    "M_PI": "3.14159265358979323846",
    "M_2_SQRTPI": "1.12837916709551257390",
    "M_SQRT2": "1.41421356237309504880",
    "M_SQRT1_2": "0.70710678118654752440",
}

# Words in the appended tables that the file might define as macros.
_TABLE_WORDS = ("extern", "const", "decltype", "table")


@dataclass(frozen=True)
class TranslationUnit:
    """The compiler's input, and what is needed to read its output."""

    text: str
    options: tuple[str, ...]  # without include directories
    kernels: tuple[str, ...]
    tables: tuple[str, ...]  # the symbol of each kernel's signature table
    namespace: str  # a name that the file cannot contain
    constant_lines: tuple[tuple[int, str], ...]  # (line of the prelude, constant)


def assemble(request: BuildRequest) -> TranslationUnit:
    """The translation unit of a request; deterministic."""
    # The file cannot contain its own hash.
    digest = hashlib.sha256("\0".join((request.source, *request.kernels)).encode(errors="surrogatepass")).hexdigest()
    namespace = f"tilewright_{digest[:16]}"
    head = [f'#line 1 "{PRELUDE_NAME}"', *_PRELUDE.splitlines()]
    for macro, number in _LIMIT_MACROS.items():
        head += [f"#ifndef {macro}", f"#define {macro} {number}", "#endif"]
    head += [f"#include <{header}>" for header in needed_headers(request)]
    for name, instruction in _DEPENDENT_LAUNCHES.items():
        body = f'if constexpr (__CUDA_ARCH__ >= 900) asm volatile("{instruction};" ::: "memory");'
        if name in request.source:
            head.append(f"static __forceinline__ __device__ void {name}() {{ {body} }}")
    head += [f"typedef {full} {name};" for name, full in _SHORT_INTEGERS.items() if _uses_type(request.source, name)]
    head += _TABLE_TYPES.replace("NAMESPACE", namespace).splitlines()
    constant_lines = []
    for name, value in request.constants:
        constant_lines.append((len(head), name))  # the first line, a directive, is not counted
        head.append(constant_line(name, value))
    tables = tuple(f"{namespace}_{index}" for index in range(len(request.kernels)))
    tail = ["", f'#line 1 "{SIGNATURE_NAME}"', *(f"#undef {word}" for word in _TABLE_WORDS)]
    # Device globals by `-default-device`; constant memory is the kernel file's to use.
    tail += [
        f'extern "C" const {namespace}::table<decltype(&{kernel})> {table}{{}};'
        for table, kernel in zip(tables, request.kernels, strict=True)
    ]
    options = ("-std=c++17", "-default-device", "-lineinfo", "--ptxas-options=-v")
    light = ("-minimal",) if _LIGHT_INCLUDES.issuperset(includes(request.source)) else ()
    text = "\n".join([*head, f'#line 1 "{KERNEL_FILE_NAME}"', request.source, *tail, ""])
    arch = f"-arch={request.arch}"
    return TranslationUnit(text, (arch, *options, *light), request.kernels, tables, namespace, tuple(constant_lines))


def includes(source: str) -> tuple[str, ...]:
    """The headers that a text includes by plain directives."""
    return tuple(_INCLUDE.findall(source))


def needed_headers(request: BuildRequest) -> list[str]:
    """The headers to include automatically, by types in the file, constants and template arguments."""
    types = [value for _, value in request.constants if isinstance(value, DType)]
    types += [dtype for dtype in _HEADERS if any(dtype.cpp in kernel for kernel in request.kernels)]
    needed = {_HEADERS[dtype] for dtype in types if dtype in _HEADERS}
    return sorted(needed | {header for header, words in _HEADER_WORDS.items() if words.search(request.source)})


def _uses_type(source: str, name: str) -> bool:
    """Whether a text uses a type name without declaring it."""
    own = (
        rf"#\s*define\s+{name}\b|using\s+{name}\b|typedef[^;]*\b{name}\s*;|\b(?:int|float|auto|struct|class)\s+{name}\b"
    )
    return re.search(rf"\b{name}\b", source) is not None and re.search(own, source) is None


def constant_line(name: str, value: ConstantValue) -> str:
    """The C++ definition of a constant."""
    if isinstance(value, DType):
        return f"using {name} = {value.cpp};"
    if isinstance(value, bool):
        return f"constexpr bool {name} = {'true' if value else 'false'};"
    if isinstance(value, float):
        return f"constexpr float {name} = {_float_literal(value)};"
    if -(2**31) <= value < 2**31:
        return f"constexpr int {name} = {value};"
    # The most negative number has no literal.
    return (
        f"constexpr long long {name} = {value + 1}ll - 1;" if value < 0 else f"constexpr long long {name} = {value}ll;"
    )


def _float_literal(value: float) -> str:
    if math.isnan(value):
        return "__builtin_bit_cast(float, 0x7fffffff)"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_bit_cast(float, 0x7f800000)"
    return f"static_cast<float>({value!r})"


# -- the table of a kernel's parameter types: PTX alone does not distinguish pointers, signedness or half types --

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

# `kind` and `pointee` index the two tuples above. An incomplete or void pointee has size and alignment 1.
_TABLE_TYPES = """\
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


def read_signature(ptx: str, table: str) -> tuple[KernelParameter, ...] | None:
    """The parameters in a table; None where the name is no function that returns void."""
    found = re.search(rf"\.global\s+\.align\s+4\s+\.b8\s+{table}\[(\d+)\](?:\s*=\s*\{{([^}}]*)\}})?\s*;", ptx)
    if found is None:
        raise ToolchainError(f"the compiled module lacks the table {table}; this is a defect of the toolchain part")
    # Trailing zeros are omitted; an all-zero table has no initialiser.
    content = bytes(int(number) for number in (found.group(2) or "0").split(","))
    content += bytes(int(found.group(1)) - len(content))
    (count,) = struct.unpack_from("<i", content)
    if count < 0:
        return None
    cells = (_CELL.unpack_from(content, 4 + _CELL.size * index) for index in range(count))
    return tuple(KernelParameter(_KINDS[kind], a, b, c, d, _POINTEES[pointee]) for kind, a, b, c, d, pointee in cells)


def check_against_entry(parameters: tuple[KernelParameter, ...], declaration: str, symbol: str) -> None:
    """Consistency check: the table and the PTX entry must agree on every size."""
    sizes = [int(array) if array else int(bits) // 8 for bits, array in _ENTRY_PARAMETER.findall(declaration)]
    if sizes != [parameter.size for parameter in parameters]:
        raise ToolchainError(
            f"{symbol}: the PTX takes parameters of {sizes} bytes, the signature table says "
            f"{[parameter.size for parameter in parameters]}; this is a defect of the toolchain part"
        )
