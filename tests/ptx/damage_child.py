"""Damages PTX at random and runs what still loads: `python damage_child.py FILE SEED COUNT`, counts on stdout."""

from __future__ import annotations

import random
import re
import struct
import sys
from pathlib import Path

from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import LaunchOptions, LaunchRequest
from tilewright.ptx.program import load_program
from tilewright.ptx.syntax import PtxError

TYPES = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "b16", "b32", "b64", "pred", "b128")
NUMBERS = ("0", "1", "-1", "31", "32", "255", "4096", "2147483647", "-2147483648", "99999999999", "0x7fffffffffffffff")


def damaged(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    body = [n for n, line in enumerate(lines) if line.startswith("\t") and ";" in line]
    for _ in range(rng.randint(1, 4)):
        at = rng.choice(body)
        line = lines[at]
        match rng.randrange(6):
            case 0:
                lines[at] = re.sub(r"\b\d+\b", lambda _: rng.choice(NUMBERS), line, count=1)
            case 1:
                lines[at] = re.sub(r"\.[busf]\d+\b", lambda _: "." + rng.choice(TYPES), line, count=1)
            case 2:
                lines[at] = ""
            case 3:
                lines[at] = lines[rng.choice(body)]
            case 4:
                registers = re.findall(r"%[a-z]+\d+", line)
                if registers:
                    lines[at] = line.replace(rng.choice(registers), rng.choice(re.findall(r"%[a-z]+\d+", text)))
            case _:
                cut = rng.randrange(len(line))
                lines[at] = line[:cut] + rng.choice("%;{}[]().,@!$ 0xF") + line[cut + 1 :]
    return "\n".join(lines)


def attempt(text: str, seed: int) -> str:
    try:
        program = load_program(text)
        program.prepare("k")
    except PtxError:
        return "refused"
    memory = GlobalMemory()
    x = memory.add("x", 256, element_bytes=4, writable=False)
    y = memory.add("y", 256, element_bytes=4)
    z = memory.add("z", 256, element_bytes=4)
    options = LaunchOptions(workers=1, instruction_budget=300_000, seed=seed)
    parameters = struct.pack("<QQQi", x, y, z, 3)
    try:
        program.launch(memory, LaunchRequest("k", (2, 1, 1), (64, 1, 1), 256, parameters, options=options))
    except PtxError:
        return "refused"
    return "ran"


def main() -> None:
    path, seed, count = sys.argv[1:]
    text = Path(path).read_text()
    rng = random.Random(int(seed))
    tally = {"ran": 0, "refused": 0}
    for number in range(int(count)):
        tally[attempt(damaged(text, rng), number)] += 1
    print(*(f"{name}={value}" for name, value in tally.items()))


if __name__ == "__main__":
    main()
