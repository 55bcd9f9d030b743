"""Where a kernel file's text declares and launches its kernels. Plain text search: good enough to point at a line."""

from __future__ import annotations

import difflib
import re

from tilewright.records import BuildRequest

_GLOBAL = re.compile(r"\b__global__\b")
_ATTRIBUTE = re.compile(r"\b(?:__launch_bounds__|__cluster_dims__|__maxnreg__|__block_size__)\s*\(")
_DECLARED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")


def kernels_declared(source: str) -> dict[str, int]:
    """The names that follow `__global__`, with the line each stands on."""
    names: dict[str, int] = {}
    for found in _GLOBAL.finditer(source):
        text = source[found.end() : found.end() + 2000]
        start = 0
        while attribute := _ATTRIBUTE.search(text, start):
            close = _closing(text, attribute.end())
            if close is None or _DECLARED.search(text[start : attribute.start()]):
                break
            start = close
        declared = _DECLARED.search(text, start)
        if declared is not None:
            line = source.count("\n", 0, found.end() + declared.start()) + 1
            names.setdefault(declared.group(1), line)
    return names


def line_of_kernel(request: BuildRequest, kernel: str) -> int:
    """The `launch` line of a kernel (by name expression or symbol), else its declaration's, else 0."""
    base = base_name(kernel)
    for expression in request.kernels:
        # A symbol holds the name with its length in front: _Z4siluPKf.
        name = base_name(expression)
        if f"{len(name)}{name}" in kernel:
            base = name
    for number, line in enumerate(request.source.split("\n"), start=1):
        if re.match(rf"//!\s*launch\s+(?:\w+::)*{re.escape(base)}\s*<", line):
            return number
    return kernels_declared(request.source).get(base, 0)


def line_of_constant(request: BuildRequest, name: str) -> int:
    """The `tune` or `const` line that defines a constant, else 0."""
    for number, line in enumerate(request.source.split("\n"), start=1):
        if re.match(rf"//!\s*(?:tune|const)\b.*\b{re.escape(name)}\s*=", line):
            return number
    return 0


def describe_missing_kernel(request: BuildRequest, kernel: str, compiler_says: str) -> str:
    """Why a name in the plan finds no kernel, and the nearest that would."""
    base = base_name(kernel)
    declared = kernels_declared(request.source)
    if base in declared:
        found = f"the plan launches {kernel}, but the kernel {base} (line {declared[base]})"
        if "overloaded function" in compiler_says:
            return f"{found} is declared more than once; give each its own name"
        if "<" not in kernel and "function template" in compiler_says:
            return f"{found} is a template; write its arguments, as in `launch {base}<...><<<`"
        if "<" in kernel and "operand types are incompatible" in compiler_says:
            return f"{found} is no template; write `launch {base}<<<`"
        wrong = "does not take these template arguments" if "<" in kernel else "cannot be named like this"
        return f"{found} {wrong}: {compiler_says}"
    if re.search(rf"^(?!\s*//).*\b{re.escape(base)}\s*\(", request.source, re.MULTILINE):
        return (
            f"the plan launches {kernel}, which is not a __global__ function; declare it `__global__ void {base}(...)`"
        )
    near = difflib.get_close_matches(base, declared, n=1)
    if near:
        return f"the plan launches {kernel}, which the code does not define; did you mean {near[0]}?"
    known = ", ".join(declared) if declared else "none; write one with __global__"
    return f"the plan launches {kernel}, which the code does not define; its kernels: {known}"


def base_name(kernel: str) -> str:
    """`gemm` of `ns::gemm<128, __half>`."""
    return kernel.partition("<")[0].rpartition("::")[2].strip()


def _closing(text: str, start: int) -> int | None:
    """The position behind the parenthesis that closes the one just before `start`."""
    depth = 1
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index + 1
    return None
