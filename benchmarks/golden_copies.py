"""Golden copies: what a real Hopper GPU does with mbarriers, bulk copies and tensor maps, one small kernel file each.

    python benchmarks/golden_copies.py --out h200_copies.npz [NAME...]    # needs a GPU of compute capability 9.0

What the file already holds of other probes stays. `probes()` are the kernel files; the emulator's tests run the same
ones and compare every byte of `y`.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np

_ROOT = Path(__file__).resolve().parent.parent
if str(_ROOT) not in sys.path:  # started as a program
    sys.path.insert(0, str(_ROOT))

from benchmarks.golden_barriers import barriers, clusters, plains  # noqa: E402
from benchmarks.golden_forms import forms  # noqa: E402
from benchmarks.golden_tensor_copies import CopyProbe, loads, refusals, stores  # noqa: E402

from tilewright.ptx.launching import PixelBox  # noqa: E402

_SECONDS = 8  # that a probe may take on the GPU, its build included


def probes() -> list[CopyProbe]:
    return [*loads(), *stores(), *plains(), *barriers(), *clusters(), *forms()]


# -- recording --


class _Im2col:
    """The driver's im2col encoding in place of the tiled one that a plan asks for, while it lasts."""

    def __init__(self, pixel_box: PixelBox) -> None:
        self.pixel_box = pixel_box

    def __enter__(self) -> None:
        from tilewright.devices.cuda import prepared

        self.before = prepared.TensorMapEncoder._encoded
        pixel_box = self.pixel_box

        def encoded(encoder: prepared.TensorMapEncoder, address: int) -> bytes:
            record = encoder._record
            rank = len(record.shape)
            memory = ctypes.create_string_buffer(256)
            aligned = -(-ctypes.addressof(memory) // 64) * 64
            library = ctypes.CDLL("libcuda.so.1")
            code = library.cuTensorMapEncodeIm2col(
                ctypes.c_void_p(aligned), ctypes.c_int(6), ctypes.c_uint32(rank), ctypes.c_void_p(address),
                (ctypes.c_uint64 * rank)(*record.shape), (ctypes.c_uint64 * (rank - 1))(*record.stride_bytes),
                (ctypes.c_int * (rank - 2))(*pixel_box.lower), (ctypes.c_int * (rank - 2))(*pixel_box.upper),
                ctypes.c_uint32(pixel_box.channels), ctypes.c_uint32(pixel_box.pixels),
                (ctypes.c_uint32 * rank)(*record.step), *(ctypes.c_int(0),) * 4,
            )  # fmt: skip
            if code:
                raise RuntimeError(f"cuTensorMapEncodeIm2col refused {pixel_box}: {code}")
            return ctypes.string_at(aligned, 128)

        prepared.TensorMapEncoder._encoded = encoded  # type: ignore[method-assign]

    def __exit__(self, *unused: object) -> None:
        from tilewright.devices.cuda import prepared

        prepared.TensorMapEncoder._encoded = self.before  # type: ignore[method-assign]


def run_on_gpu(probe: CopyProbe, folder: Path) -> np.ndarray:
    """The bytes of `y` as the GPU of this machine leaves them."""
    import contextlib

    import torch

    import tilewright

    path = folder / f"{probe.name}.cu"
    path.write_text(probe.source)
    x = torch.from_numpy(probe.input_words().copy())
    x = (x.bfloat16() if probe.dtype == "bfloat16" else x).cuda()
    with _Im2col(probe.pixel_box) if probe.pixel_box else contextlib.nullcontext():
        y = tilewright.load(path, strict=True)(x)
        torch.cuda.synchronize()
    return y.cpu().contiguous().view(torch.uint8).numpy().ravel().copy()


def _record(chosen: list[CopyProbe], folder: Path) -> None:
    """Each result into a file of its own, in this process, until one fails: a fault of the GPU is for good."""
    for probe in chosen:
        signal.alarm(_SECONDS)  # a kernel may hang
        try:
            np.save(folder / f"{probe.name}.npy", run_on_gpu(probe, folder))
        except Exception as problem:
            print(f"{probe.name}: {str(problem).splitlines()[0]}", flush=True)
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("h200_copies.npz"))
    parser.add_argument("names", nargs="*", help="probes whose names hold one of these; all")
    arguments = parser.parse_args()
    import tilewright  # noqa: F401  # once, before the children

    stored: dict[str, np.ndarray] = dict(np.load(arguments.out)) if arguments.out.exists() else {}
    left = [
        one
        for one in [*probes(), *refusals()]
        if not arguments.names or any(name in one.name for name in arguments.names)
    ]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        while left:
            child = os.fork()
            if not child:
                _record(left, Path(folder))
                os._exit(0)
            os.waitpid(child, 0)
            while left and (path := Path(folder, f"{left[0].name}.npy")).exists():
                stored[left[0].name] = np.load(path)
                stored[f"{left[0].name}.identity"] = np.array(left[0].identity)
                left.pop(0)
            np.savez_compressed(arguments.out, **stored)
            if left:
                failures += 1
                print(f"{left.pop(0).name}: FAILED", flush=True)
    print(f"{arguments.out}: {len(stored) // 2} probes, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
