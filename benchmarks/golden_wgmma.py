"""wgmma on a real GPU: every kind of operand, layout and sum once, kept for the emulator's tests.

    python benchmarks/golden_wgmma.py record --out wgmma.npz    # needs a Hopper GPU; seconds
    python benchmarks/golden_wgmma.py build                     # compiles the kernel files, runs nothing

A form is a kernel of one warpgroup that multiplies once. Its tiles are laid out in shared memory by numpy, element by
element from the canonical layouts of the PTX manual: written down here a second time, apart from the emulator's.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "b1": 1}
_SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}


@dataclass(frozen=True)
class Form:
    """One form of wgmma.mma_async; the tiles of a and b have the same swizzle."""

    columns: int
    a: str
    b: str
    d: str
    swizzle: int = 128
    transposed: tuple[bool, bool] = (False, False)
    signs: tuple[int, int] = (1, 1)
    in_registers: bool = False
    adds: bool = True
    saturates: bool = False
    base: int = 0  # rows of 128 bytes from the start of a swizzle's pattern to that of the tiles

    @property
    def name(self) -> str:
        types = f"{'satfinite.' if self.saturates else ''}{self.d}.{self.a}.{self.b}"
        return f"m64n{self.columns}k{256 // BITS[self.a]}.{types}{'.and.popc' if self.a == 'b1' else ''}"

    @property
    def sums(self) -> int:
        """Registers of the accumulator."""
        return self.columns // (4 if self.d == "f16" else 2)

    @property
    def label(self) -> str:
        parts = [self.name, f"swizzle {self.swizzle}"]
        parts += [f"{which} transposed" for which, yes in zip("ab", self.transposed, strict=True) if yes]
        parts += [f"-{which}" for which, sign in zip("ab", self.signs, strict=True) if sign < 0]
        parts += ["a in registers"] * self.in_registers + ["overwrites"] * (not self.adds)
        return ", ".join(parts + [f"base {self.base}"] * bool(self.base))


# -- tiles in shared memory --


def tile_bytes(rows: int) -> int:
    """Room for an operand with so many rows or columns, in any layout; 1,024 divides it."""
    return -(-rows // 64) * 64 * 128


def strides(form: Form, transposed: bool) -> tuple[int, int]:
    """Leading and stride byte offset of a tile: its atoms, 8 rows of `swizzle` bytes, follow one another."""
    atom = 8 * (form.swizzle or 16)
    if not form.swizzle:
        return atom, 2 * atom
    return (2 * atom, atom) if transposed else (16, atom)


def chunk_offset(form: Form, mn: int, k: int, transposed: bool) -> int:
    """Where 16 bytes lie in a tile: row `mn` and the chunk `k` of its 32 bytes; transposed, 8 of m or n and row `k`."""
    wide = (form.swizzle or 16) // 16
    lead, stride = strides(form, transposed)
    if not transposed:
        linear = mn // 8 * stride + mn % 8 * wide * 16 + (k * 16 if form.swizzle else k * lead)
    elif form.swizzle:
        linear = mn % wide * 16 + mn // wide * lead + k % 8 * wide * 16 + k // 8 * stride
    else:
        linear = mn * stride + k % 8 * 16 + k // 8 * lead
    return linear ^ ((linear >> 7) % wide) << 4


def laid_out(form: Form, matrix: Array, transposed: bool) -> bytes:
    """The tile of `matrix`, which has 32 bytes of k for each row of a or column of b."""
    image = bytearray(tile_bytes(len(matrix)) + 1024 * bool(form.base))
    first = 128 * form.base
    if transposed:
        halves = matrix.view(np.uint16).T  # [k, mn]
        blocks = range(len(matrix) // 8)
        chunks = {(block, k): halves[k, 8 * block : 8 * block + 8] for block in blocks for k in range(16)}
    else:
        chunks = {(row, k): matrix[row, 16 * k : 16 * k + 16] for row in range(len(matrix)) for k in range(2)}
    for (mn, k), chunk in chunks.items():
        at = first + chunk_offset(form, mn, k, transposed)
        image[at : at + 16] = chunk.tobytes()
    return bytes(image)


def image_of(form: Form, a: Array, b: Array) -> bytes:
    """Shared memory with both tiles; `a` [64, 32] and `b` [columns, 32] bytes along k."""
    left = b"" if form.in_registers else laid_out(form, a, form.transposed[0])
    return left + laid_out(form, b, form.transposed[1])


def smem_of(form: Form) -> int:
    tiles = (form.columns,) if form.in_registers else (64, form.columns)
    return sum(tile_bytes(rows) + 1024 * bool(form.base) for rows in tiles)


# -- registers --


def left_registers(a: Array) -> Array:
    """a in the four registers of each of 128 threads, [4, 128]."""
    words = np.ascontiguousarray(a).view(np.uint32)  # [64, 8]
    thread = np.arange(128)
    row = 16 * (thread // 32) + thread % 32 // 4
    return np.stack([words[row + 8 * (j % 2), 4 * (j // 2) + thread % 4] for j in range(4)])


def sum_places(columns: int) -> tuple[Array, Array]:
    """Row and column of each element of the accumulator, [columns / 2, 128]: element and thread."""
    element, thread = np.meshgrid(np.arange(columns // 2), np.arange(128), indexing="ij")
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (element // 2 % 2)
    return row, 8 * (element // 4) + 2 * (thread % 4) + element % 2


_SUM_TYPES = {"f32": np.float32, "s32": np.int32, "f16": np.float16}


def sums_of(form: Form, registers: Array) -> Array:
    """The accumulator, [64, columns], from its registers, [sums, 128]."""
    elements = np.ascontiguousarray(registers.T).view(_SUM_TYPES[form.d]).T
    result = np.zeros((64, form.columns), _SUM_TYPES[form.d])
    result[sum_places(form.columns)] = elements
    return result


def registers_of(form: Form, sums: Array) -> Array:
    """The other way round."""
    elements = np.ascontiguousarray(sums.astype(_SUM_TYPES[form.d])[sum_places(form.columns)].T)
    return np.ascontiguousarray(elements.view(np.uint32).T)


# -- kernels --


def descriptor_code(form: Form, address: str, transposed: bool) -> str:
    lead, stride = strides(form, transposed)
    constant = (lead >> 4) << 16 | (stride >> 4) << 32 | form.base << 49 | _SWIZZLES[form.swizzle] << 62
    return f"((unsigned long long)(({address} + {128 * form.base}) >> 4) | {constant:#x}ull)"


def wgmma_code(form: Form, a_at: str, b_at: str) -> str:
    """The instruction as inline PTX on `d` and, where a is in registers, `a`."""
    count = form.sums
    sums = ", ".join(f"%{j}" for j in range(count))
    outputs = ", ".join(f'"+r"(d[{j}])' for j in range(count))
    if form.in_registers:
        left, inputs = "{" + ", ".join(f"%{count + j}" for j in range(4)) + "}", [f'"r"(a[{j}])' for j in range(4)]
    else:
        left, inputs = f"%{count}", [f'"l"({descriptor_code(form, a_at, form.transposed[0])})']
    right = f"%{count + len(inputs)}"
    inputs.append(f'"l"({descriptor_code(form, b_at, form.transposed[1])})')
    numbers = list(form.signs) if form.d != "s32" else []
    if BITS[form.a] == 16:
        numbers += [int(yes) for yes in form.transposed[form.in_registers :]]
    tail = "".join(f", {number}" for number in numbers)
    text = f"wgmma.mma_async.sync.aligned.{form.name} {{{sums}}}, {left}, {right}, p{tail};"
    return (
        f'asm volatile("{{ .reg .pred p; setp.ne.b32 p, {int(form.adds)}, 0; {text} }}" '
        f': {outputs} : {", ".join(inputs)} : "memory");'
    )


_KERNEL = """
extern "C" __global__ void {name}(const uint4* image, const unsigned* left, const unsigned* start, unsigned* out) {{
  extern __shared__ __align__(1024) unsigned char tiles[];
  for (int at = threadIdx.x; at < {bytes} / 16; at += 128) ((uint4*)tiles)[at] = image[{image} / 16 + at];
  const unsigned at = (unsigned)__cvta_generic_to_shared(tiles);
  unsigned d[{sums}], a[4];
  for (int j = 0; j < {sums}; j++) d[j] = start[{first} + j * 128 + threadIdx.x];
  for (int j = 0; j < 4; j++) a[j] = left[{left} + j * 128 + threadIdx.x];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  {wgmma}
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int j = 0; j < {sums}; j++) out[{first} + j * 128 + threadIdx.x] = d[j];
}}
"""


def kernel_of(form: Form, name: str = "k", image: int = 0, left: int = 0, first: int = 0) -> str:
    """The kernel; its tiles, registers of a and sums begin at these bytes and words of the tensors."""
    a_bytes = 0 if form.in_registers else tile_bytes(64) + 1024 * bool(form.base)
    code = wgmma_code(form, "at", f"at + {a_bytes}")
    return _KERNEL.format(
        name=name, bytes=smem_of(form), sums=form.sums, wgmma=code, image=image, left=left, first=first
    )


# -- what is multiplied --


def operand_bytes(kind: str, rows: int, random: np.random.Generator) -> Array:
    """[rows, 32]: numbers over a few powers of two, with zeros among them and, of floats, small and special ones."""
    if kind in ("s8", "u8", "b1"):
        return random.integers(0, 256, (rows, 32), np.uint8)
    count = 256 // BITS[kind]
    spread = {"e4m3": 5, "e5m2": 9, "f16": 8}.get(kind, 14)
    values = random.standard_normal((rows, count)) * np.exp2(random.integers(-spread, spread // 2, (rows, count)))
    values[random.random((rows, count)) < 0.05] = 0
    if kind in ("bf16", "tf32"):
        words = values.astype(np.float32)
        words[3 % rows, 1] = np.inf
        words[5 % rows, 0] = 1e-39  # subnormal
        upper = (words.view(np.uint32) >> 16).astype(np.uint16)
        return upper.view(np.uint8) if kind == "bf16" else words.view(np.uint8)
    halves = values.astype(np.float16)
    if kind == "f16":
        halves[4 % rows, 2] = np.nan
        halves[6 % rows, 3] = 6e-8
        return halves.view(np.uint8)
    if kind == "e5m2":
        return (halves.view(np.uint16) >> 8).astype(np.uint8)
    scaled = (np.clip(values, -400, 400) / 256).astype(np.float16).view(np.uint16)  # its bits shifted are e4m3's
    return ((scaled & 0x7FFF) >> 7 & 0x7F | scaled >> 8 & 0x80).astype(np.uint8)


@dataclass(frozen=True)
class Inputs:
    a: Array  # [64, 32] bytes
    b: Array  # [columns, 32]
    start: Array  # [64, columns]


def inputs_of(form: Form) -> Inputs:
    seed = int.from_bytes(hashlib.sha256(form.label.encode()).digest()[:4], "little")
    random = np.random.default_rng(seed)
    a, b = operand_bytes(form.a, 64, random), operand_bytes(form.b, form.columns, random)
    if form.d == "s32":
        start = random.integers(-(2**31), 2**31, (64, form.columns), np.int64).astype(np.int32)
    else:
        start = random.standard_normal((64, form.columns)) * np.exp2(random.integers(-12, 6, (64, form.columns)))
    return Inputs(a, b, start)


_BASE = Form(64, "bf16", "bf16", "f32")


def forms() -> tuple[Form, ...]:
    half, single = replace(_BASE, a="f16", b="f16"), replace(_BASE, a="tf32", b="tf32")
    made = [_BASE, half, single]
    for swizzle in (0, 32, 64, 128):
        for transposed in ((False, False), (True, False), (False, True), (True, True)):
            made.append(replace(_BASE, columns=72, swizzle=swizzle, transposed=transposed))
        made.append(replace(single, columns=24, swizzle=swizzle))
    made += [replace(half, columns=columns, transposed=(True, True)) for columns in (8, 16, 200, 256)]
    made += [replace(half, d="f16", columns=columns, swizzle=64) for columns in (8, 104)]
    made += [replace(_BASE, swizzle=swizzle, base=base) for swizzle in (32, 64, 128) for base in (1, 3)]
    for signs in ((-1, 1), (1, -1), (-1, -1)):
        made.append(replace(half, columns=16, signs=signs))
    made += [replace(one, columns=40, in_registers=True, adds=False) for one in (_BASE, half, single)]
    made.append(replace(half, columns=40, in_registers=True, transposed=(False, True), signs=(-1, 1)))
    for a in ("e4m3", "e5m2"):
        for b in ("e4m3", "e5m2"):
            made += [Form(48, a, b, d, swizzle=64) for d in ("f32", "f16")]
    eight = Form(8, "e4m3", "e4m3", "f32", adds=False)
    made += [eight, replace(eight, columns=16, in_registers=True, signs=(-1, 1))]
    for a in ("s8", "u8"):
        for b in ("s8", "u8"):
            made += [Form(32, a, b, "s32", saturates=saturates) for saturates in (False, True)]
    made += [Form(16, "s8", "u8", "s32", in_registers=True), Form(80, "b1", "b1", "s32", swizzle=32)]
    return tuple(dict.fromkeys(made))


# -- kernel files --

_IN_A_FILE = 8


def _files() -> list[tuple[Form, ...]]:
    every = forms()
    return [every[at : at + _IN_A_FILE] for at in range(0, len(every), _IN_A_FILE)]


def file_of(group: tuple[Form, ...]) -> tuple[str, bytes, Array, Array]:
    """A kernel file with a launch for each form; its tensors: images, registers of a, registers the sums start from."""
    image, left, start, kernels, launches = bytearray(), [], [], [], []
    for number, form in enumerate(group):
        inputs = inputs_of(form)
        first = 128 * sum(other.sums for other in group[:number])
        kernels.append(kernel_of(form, f"k{number}", len(image), 512 * number, first))
        launches.append(f"//! launch  k{number}<<<1, 128, {smem_of(form)}>>>(image, left, start, out)")
        image += image_of(form, inputs.a, inputs.b)
        left.append(left_registers(inputs.a))
        start.append(registers_of(form, inputs.start))
    rows = sum(form.sums for form in group)
    plan = ["//! op      golden(image, left, start) -> out", "//! need    device.cc == 90"]
    plan.append(f"//! out     out: i32[{rows}, 128]")
    text = "\n".join([*plan, *launches, *kernels])
    return text, bytes(image), np.concatenate(left), np.concatenate(start)


def identity() -> str:
    """Changes whenever recorded results no longer belong to the forms."""
    digest = hashlib.sha256()
    for group in _files():
        text, *tensors = file_of(group)
        digest.update(text.encode())
        for tensor in tensors:
            digest.update(bytes(tensor))
    return digest.hexdigest()


def _record(out: Path) -> int:
    import torch

    import tilewright

    stored = {"gpu": np.array(torch.cuda.get_device_name()), "identity": np.array(identity())}
    with tempfile.TemporaryDirectory() as folder:
        for number, group in enumerate(_files()):
            text, *tensors = file_of(group)
            path = Path(folder) / f"golden{number}.cu"
            path.write_text(text)
            given = [torch.frombuffer(bytearray(bytes(one)), dtype=torch.int32).cuda() for one in tensors]
            registers = tilewright.load(path, strict=True)(*given).cpu().numpy().view(np.uint32)
            first = 0
            for form in group:
                stored[form.label] = registers[first : first + form.sums]
                first += form.sums
            print(f"{path.name}: {len(group)} forms", flush=True)
            np.savez_compressed(out, **stored)  # what there is survives a cut
    return 0


def _build() -> int:
    from tilewright.records import Build, BuildRequest
    from tilewright.toolchain import build

    for number, group in enumerate(_files()):
        names = tuple(f"k{k}" for k in range(len(group)))
        result = build(BuildRequest(file_of(group)[0], (), names, "sm_90a", f"golden{number}.cu"))
        if not isinstance(result, Build):
            print(*result.diagnostics[:5], result.log[-1000:], sep="\n")
            return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("record", "build"))
    parser.add_argument("--out", type=Path, default=Path("wgmma.npz"))
    arguments = parser.parse_args()
    return _record(arguments.out) if arguments.command == "record" else _build()


if __name__ == "__main__":
    sys.exit(main())
