"""The terms a lesson may use, each in a sentence or two; those that occur are printed, linked from their first use."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tilewright.frontends.explain.lesson import Entry, Link

# Term -> what it is called in texts (a regular expression; the term itself where nothing is said), and its meaning.
_TERMS: dict[str, tuple[str, str]] = {
    "kernel": (
        r"kernels?",
        "A function that runs on the GPU. It is written for one thread and run by very many at once, each with its own "
        "index.",
    ),
    "launch": (
        r"launch(?:es)?",
        "One start of a kernel: how many blocks of how many threads run it. Each costs microseconds, however little "
        "it does.",
    ),
    "thread": (
        r"threads?",
        "One run of the kernel's code with its own index and registers; as a Python loop's body with its own `i`, but "
        "thousands at a time.",
    ),
    "warp": (
        r"warps?",
        "32 threads that execute each instruction together. What a warp asks of memory in one instruction is one "
        "request.",
    ),
    "lane": (r"lanes?", "The place of a thread in its warp, 0 to 31."),
    "block": (
        r"(?:thread )?blocks?",
        "A group of threads, up to 1024, that run on the same multiprocessor, share its shared memory and can wait for "
        "each other. Blocks run in any order.",
    ),
    "grid": (r"grids?", "All blocks of one launch."),
    "multiprocessor": (
        r"multiprocessors?|SMs?",
        "One of the GPU's many cores (an H200 has 132). It runs several blocks at a time and switches between their "
        "warps whenever one waits.",
    ),
    "coalescing": (
        r"coalesc(?:ed|ing)|uncoalesced",
        "Neighbouring lanes touch neighbouring addresses, so the warp's request is served by few sectors. Scattered "
        "addresses move bytes nobody asked for.",
    ),
    "sector": (r"sectors?", "32 bytes in a row: the smallest piece that memory moves. One wanted byte brings 32."),
    "vector load": (
        r"(?:16-byte |vector )(?:loads?|stores?|vectors?|access(?:es)?)",
        "One instruction by which a thread moves 8 or 16 bytes at once rather than one element: fewer instructions for "
        "the same bytes.",
    ),
    "shared memory": (
        r"shared memory",
        "A small fast memory on the multiprocessor that the threads of one block share, used to pass values on and to "
        "keep what is read again.",
    ),
    "bank conflict": (
        r"bank conflicts?",
        "Shared memory has 32 banks that each serve one 4-byte word at a time. Lanes that want different words of one "
        "bank wait for each other.",
    ),
    "device memory": (
        r"device memory|global memory",
        "The GPU's large memory, where tensors lie. It is far from the cores: a read takes hundreds of cycles, so many "
        "must be under way at once.",
    ),
    "L1": (
        r"L1(?: cache)?",
        "Each multiprocessor's own cache, in the same fast memory as shared memory. What is found there need not come "
        "from L2.",
    ),
    "cold L2": (
        r"cold L2",
        "Times are taken with the L2 cache full of data that others wrote. As the kernel's data comes in, it has "
        "to go out to device memory, and that takes part of its bandwidth.",
    ),
    "L2 cache": (r"L2(?: cache)?", "A cache of some tens of megabytes between device memory and all multiprocessors."),
    "register": (
        r"registers?",
        "The fastest storage, private to a thread. Threads that use many leave room for fewer warps on a "
        "multiprocessor.",
    ),
    "spill": (
        r"spill(?:s|ed|ing)?",
        "Values that did not fit in registers, so the compiler put them in memory; each use is then an access to it.",
    ),
    "occupancy": (
        r"occupancy",
        "Warps on a multiprocessor over the most that it can hold. More warps hide more waiting, up to a point.",
    ),
    "latency": (r"latency", "How long one thing takes from start to end, as against how much gets done in a second."),
    "barrier": (
        r"barriers?",
        "A place where the threads of a block wait until all have come, `__syncthreads()` in CUDA: what was written "
        "before it can be read after it.",
    ),
    "race": (
        r"races?",
        "Two threads touch the same memory, one of them writing, and nothing says who is first: the result is chance.",
    ),
    "shuffle": (
        r"shuffles?",
        "An instruction by which the lanes of a warp read each other's registers without any memory between them.",
    ),
    "reduction": (r"reductions?", "Many values made into one, such as a sum or a maximum; threads do it pairwise."),
    "fusion": (
        r"fus(?:ed|es|ing|ion)",
        "Several operations in one kernel, so that what is between never goes to memory.",
    ),
    "tile": (r"tiles?|tiling", "A rectangle of the output that one block, or one warp, works out."),
    "pipeline": (r"pipelin(?:e|es|ed|ing)", "While one piece is worked on, the next is already being fetched."),
    "asynchronous copy": (
        r"cp\.async|asynchronous cop(?:y|ies)",
        "A copy from device to shared memory that goes on while the threads do something else; it must be waited for "
        "before the data is read.",
    ),
    "wave": (
        r"waves?",
        "As many blocks as the whole GPU can run at once. A last wave that is not full leaves multiprocessors idle.",
    ),
    "pass": (r"passes", "One turn of a multiprocessor's own memory, which serves up to 128 bytes."),
    "tensor core": (
        r"tensor cores?|mma(?:\.sync)?",
        "A unit that multiplies small matrices in one instruction, many times faster than one product at a time.",
    ),
    "special-function unit": (
        r"special[- ]functions?(?: units?)?",
        "The unit that does exponentials, reciprocals and roots, for few lanes at a time.",
    ),
    "issue slot": (
        r"issue(?: slots?)?",
        "A multiprocessor starts at most four warp instructions in a cycle. A kernel of many instructions is bound by "
        "that.",
    ),
    "roofline": (
        r"rooflines?",
        "The least time an operation can take on a GPU: its fewest bytes over the bandwidth or its fewest operations "
        "over the peak, whichever is longer.",
    ),
    "bandwidth": (r"bandwidth", "How many bytes a memory can move in a second."),
    "bf16": (r"bf16", "A 16-bit float with the range of a 32-bit one and 8 bits of precision."),
    "emulator": (
        r"emulat(?:or|ed)",
        "Tilewright's own interpreter of GPU code: it runs kernels without a GPU, looks for faults and counts, but "
        "times nothing.",
    ),
    "autotuner": (
        r"(?:auto)?tun(?:er|ed)",
        "What tries the constants that a kernel file offers, such as threads per block, and keeps the best.",
    ),
}
_PATTERN = re.compile(
    r"(?<![\w.])(?:" + "|".join(f"(?P<t{n}>{form})" for n, (form, _) in enumerate(_TERMS.values())) + r")(?!\w)"
)


class Glossary:
    """Which terms a text has used so far."""

    def __init__(self) -> None:
        self._used: set[int] = set()

    def linked(self, text: str) -> Iterator[str | Link]:
        """The text with a link at the first use of each term."""
        done = 0
        for found in _PATTERN.finditer(text):
            number = _number(found)
            if number in self._used:
                continue
            self._used.add(number)
            if found.start() > done:
                yield text[done : found.start()]
            yield Link(found[0], _anchor(number))
            done = found.end()
        if done < len(text):
            yield text[done:]

    def entries(self) -> tuple[Entry, ...]:
        """The terms used, in the order of the alphabet; their meanings may use others, which are then among them."""
        known = set(self._used)
        pending = sorted(known)
        while pending:
            meaning = list(_TERMS.values())[pending.pop()][1]
            for found in _PATTERN.finditer(meaning):
                number = _number(found)
                if number not in known:
                    known.add(number)
                    pending.append(number)
        terms = [(number, term, meaning) for number, (term, (_, meaning)) in enumerate(_TERMS.items())]
        made = (Entry(_anchor(number), term, meaning) for number, term, meaning in terms if number in known)
        return tuple(sorted(made, key=lambda entry: entry.term.lower()))


def _number(found: re.Match[str]) -> int:
    assert found.lastgroup is not None
    return int(found.lastgroup[1:])


def _anchor(number: int) -> str:
    return f"term-{re.sub('[^a-z0-9]+', '-', list(_TERMS)[number].lower())}"
