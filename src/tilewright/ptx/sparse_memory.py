"""Sparse arrays: only written pages take memory, and repeated bytes are mapped copy-on-write.

So sampled blocks can run on tensors larger than the machine's memory.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import resource
import weakref
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

LARGE = 32 << 20  # bytes; smaller arrays are allocated plainly
_LEAST_CHUNK, _MOST_CHUNK = 8 << 20, 256 << 20
_NO_RESERVE, _FIXED = 0x4000, 0x10  # of mmap on Linux


def zeros(nbytes: int) -> Bytes:
    return np.frombuffer(_reserved(nbytes), dtype=np.uint8) if nbytes > LARGE else np.zeros(nbytes, dtype=np.uint8)


def filled(nbytes: int, byte: int) -> Bytes:
    if nbytes <= LARGE:
        return np.full(nbytes, byte, dtype=np.uint8)
    return repeated(np.full(mmap.PAGESIZE, byte, dtype=np.uint8), nbytes) if byte else zeros(nbytes)


def repeated(block: Bytes, nbytes: int) -> Bytes:
    """A writable array of `nbytes` that repeats the block."""
    chunk_bytes = math.lcm(len(block), mmap.PAGESIZE)
    if nbytes <= LARGE or chunk_bytes > _MOST_CHUNK:
        return _over_and_over(block, nbytes)
    chunk_bytes *= -(-_LEAST_CHUNK // chunk_bytes)
    file = os.memfd_create("tilewright")
    try:
        with os.fdopen(os.dup(file), "wb") as writer:
            writer.write(_over_and_over(block, chunk_bytes).data)
        array = zeros(nbytes)
        for start in range(0, nbytes, chunk_bytes):
            _map(array.ctypes.data + start, min(chunk_bytes, nbytes - start), file)
        return array
    finally:
        os.close(file)


def _over_and_over(block: Bytes, nbytes: int) -> Bytes:
    return np.tile(block, -(-nbytes // len(block)))[:nbytes]


def _reserved(nbytes: int) -> mmap.mmap:
    """Reserved address space. RLIMIT_AS is raised by its size, because the supervisor limits resident memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    bounded = soft != resource.RLIM_INFINITY
    if bounded:
        _allow(nbytes)
    try:
        made = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except OSError as error:
        if bounded:
            _allow(-nbytes)
        raise MemoryError(f"{nbytes} bytes cannot be mapped: {error}") from error
    if bounded:
        weakref.finalize(made, _allow, -nbytes)
    with suppress(OSError):  # optional; reads of unwritten memory are ten times as fast with huge pages
        made.madvise(mmap.MADV_HUGEPAGE)
    return made


def _allow(more: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = soft + more
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _map(address: int, nbytes: int, file: int) -> None:
    readable_writable = mmap.PROT_READ | mmap.PROT_WRITE
    found = _library().mmap(address, nbytes, readable_writable, mmap.MAP_PRIVATE | _FIXED | _NO_RESERVE, file, 0)
    if found != address:
        raise MemoryError(f"{nbytes} bytes cannot be mapped: {os.strerror(ctypes.get_errno())}")


@cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    return library
