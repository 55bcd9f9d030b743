"""The child of the fuzz test: loads and launches mutated PTX, and says in JSON what came of it.

    python -m tests.ptx.fuzz_child fuzz CORPUS_FOLDER FIRST_SEED COUNT LAST_TEXT_FILE
    python -m tests.ptx.fuzz_child texts FOLDER

The first mutates the texts of a folder; each is written to LAST_TEXT_FILE before it is tried, so that a crash can be
repeated. The second tries the texts of a folder as they are. A refusal is `PtxError`, or `MemoryError`
from a launch; any other exception is reported as unexpected.
"""

from __future__ import annotations

import json
import random
import re
import resource
import struct
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import LaunchOptions, LaunchRequest
from tilewright.ptx.parser import parse_ptx
from tilewright.ptx.program import load_program
from tilewright.ptx.syntax import Function, PtxError

ADDRESS_SPACE_BYTES = 6 << 30
REGION_BYTES = 4096
BUDGET = 100_000
TOKEN = re.compile(r"[%$.\w]+|[^\s\w]")
NUMBER = re.compile(r"(?<![\w%$.])-?\d+\b")
NASTY_NUMBERS = (
    *(
        "0",
        "1",
        "-1",
        "3",
        "7",
        "31",
        "32",
        "33",
        "64",
        "255",
        "4095",
        "65536",
        "0x7fffffff",
        "0x80000000",
        "4294967295",
    ),
    *("4294967296", "0x7fffffffffffffff", "0x8000000000000000", "18446744073709551615", "99999999999999999999999"),
)
_TYPES = "b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f16 f16x2 bf16 bf16x2 f32 f64 pred tf32 e4m3"
TYPES = tuple(_TYPES.split())


def mutated(text: str, tokens: list[str], rng: random.Random) -> str:
    """The text after a few random changes."""
    lines = text.split("\n")
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        rng.choice(MUTATIONS)(lines, tokens, rng)
    return "\n".join(lines)


def _some_line(lines: list[str], rng: random.Random) -> int:
    return rng.randrange(len(lines))


def _drop(lines: list[str], _: list[str], rng: random.Random) -> None:
    if len(lines) > 1:
        del lines[_some_line(lines, rng)]


def _repeat(lines: list[str], _: list[str], rng: random.Random) -> None:
    lines.insert(_some_line(lines, rng), lines[_some_line(lines, rng)])


def _swap(lines: list[str], _: list[str], rng: random.Random) -> None:
    first, second = _some_line(lines, rng), _some_line(lines, rng)
    lines[first], lines[second] = lines[second], lines[first]


def _number(lines: list[str], _: list[str], rng: random.Random) -> None:
    at = rng.choice([i for i, line in enumerate(lines) if NUMBER.search(line)] or [0])
    places = list(NUMBER.finditer(lines[at]))
    if places:
        place = rng.choice(places)
        lines[at] = lines[at][: place.start()] + rng.choice(NASTY_NUMBERS) + lines[at][place.end() :]


def _token(lines: list[str], tokens: list[str], rng: random.Random) -> None:
    at = rng.choice([i for i, line in enumerate(lines) if TOKEN.search(line)] or [0])
    places = list(TOKEN.finditer(lines[at]))
    if places:
        place = rng.choice(places)
        lines[at] = lines[at][: place.start()] + rng.choice((*tokens, "")) + lines[at][place.end() :]


def _type(lines: list[str], _: list[str], rng: random.Random) -> None:
    typed = [i for i, line in enumerate(lines) if re.search(r"\.(?:[bus]\d+|f\d+|pred)\b", line)]
    if typed:
        at = rng.choice(typed)
        lines[at] = re.sub(r"\.(?:[bus]\d+|f\d+|pred)\b", "." + rng.choice(TYPES), lines[at], count=1)


def _register(lines: list[str], tokens: list[str], rng: random.Random) -> None:
    registers = [token for token in tokens if token.startswith("%")]
    used = [i for i, line in enumerate(lines) if "%" in line]
    if used and registers:
        at = rng.choice(used)
        lines[at] = re.sub(r"%\w+", rng.choice(registers).replace("\\", ""), lines[at], count=1)


def _modifier(lines: list[str], tokens: list[str], rng: random.Random) -> None:
    modifiers = [token for token in tokens if token.startswith(".")] or [".f32"]
    used = [i for i, line in enumerate(lines) if re.search(r"\w\.\w", line)]
    if used:
        at = rng.choice(used)
        change = rng.choice(("", rng.choice(modifiers), rng.choice(modifiers) + rng.choice(modifiers)))
        lines[at] = re.sub(r"(?<=\w)\.\w+", change.replace("\\", ""), lines[at], count=1)


def _garbage(lines: list[str], _: list[str], rng: random.Random) -> None:
    at = _some_line(lines, rng)
    position = rng.randrange(len(lines[at]) + 1)
    junk = "".join(chr(rng.choice((0, 9, 34, 40, 41, 47, 59, 91, 93, 123, 125, 0x2028, 0x1F600))) for _ in range(3))
    lines[at] = lines[at][:position] + junk + lines[at][position:]


def _cut(lines: list[str], _: list[str], rng: random.Random) -> None:
    del lines[rng.randrange(len(lines)) :]
    lines.append("")


MUTATIONS = (_drop, _repeat, _swap, _number, _number, _token, _token, _type, _register, _modifier, _garbage, _cut)


# -- trying a text --


def attempt(text: str, rng: random.Random) -> str:
    """Load and launch everything; what happened, as a word."""
    try:
        functions = [function for function in parse_ptx(text).functions.values() if function.is_entry]
        program = load_program(text)
    except PtxError:
        return "refused"
    word = "empty"
    for function in functions[:4]:
        memory = GlobalMemory()
        try:
            request = _request(function, _region(memory), rng)
            result = program.launch(memory, request)
        except (PtxError, MemoryError):
            word = "refused at launch"
            continue
        word = "found" if result.findings else "ran"
    return word


def _region(memory: GlobalMemory) -> list[int]:
    shape = (REGION_BYTES // 4,)
    data = np.arange(REGION_BYTES // 4, dtype=np.int32).view(np.uint8)
    common = {"element_bytes": 4, "shape": shape, "stride": (1,)}
    return [
        memory.add("x", REGION_BYTES, writable=False, initialised=True, data=data, **common),
        memory.add("y", REGION_BYTES, writable=True, initialised=False, data=None, **common),
    ]


def _request(function: Function, addresses: list[int], rng: random.Random) -> LaunchRequest:
    block = bytearray()
    for position, parameter in enumerate(function.parameters):
        align = max(1, min(parameter.align, 128))
        block += bytes(-len(block) % align)
        size = min(parameter.size_bytes, 4096)
        pointer = struct.pack("<Q", addresses[position % 2])
        number = rng.randrange(300).to_bytes(2, "little")
        block += (pointer if size == 8 else number).ljust(size, b"\0")[:size]
    return LaunchRequest(
        kernel=function.name,
        grid=(rng.choice((1, 2, 5)), 1, 1),
        block=(rng.choice((1, 32, 64, 100)), rng.choice((1, 1, 2)), 1),
        dynamic_smem_bytes=rng.choice((0, 128, 4096)),
        parameters=bytes(block),
        cooperative=rng.random() < 0.1,
        options=LaunchOptions(seed=rng.choice((None, 1)), instruction_budget=BUDGET, workers=rng.choice((1, 2))),
    )


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The address sanitizer maps terabytes it never touches.
    if "asan" not in Path("/proc/self/maps").read_text():
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))


def fuzz(folder: Path, first: int, count: int, last: Path) -> None:
    corpus = [path.read_text() for path in sorted(folder.glob("*.ptx"))]
    tokens = sorted({token for text in corpus for token in TOKEN.findall(text)})
    words: Counter[str] = Counter()
    unexpected: list[str] = []
    for seed in range(first, first + count):
        rng = random.Random(seed)
        text = mutated(rng.choice(corpus), tokens, rng)
        last.write_text(text)
        try:
            words[attempt(text, rng)] += 1
        except Exception as error:  # reported: only PtxError is a refusal
            unexpected.append(f"seed {seed}: {type(error).__name__}: {error}"[:300])
    print(json.dumps({"words": words, "unexpected": unexpected}))


def texts(folder: Path) -> None:
    for path in sorted(folder.glob("*.ptx")):
        print(json.dumps({"began": path.stem}), flush=True)
        try:
            word = attempt(path.read_text(), random.Random(1))
        except Exception as error:  # reported: only PtxError is a refusal
            word = f"unexpected {type(error).__name__}: {error}"[:300]
        print(json.dumps({"ended": path.stem, "word": word}), flush=True)


def main() -> None:
    limit()
    if sys.argv[1] == "fuzz":
        fuzz(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
    else:
        texts(Path(sys.argv[2]))


if __name__ == "__main__":
    main()
