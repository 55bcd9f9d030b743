"""The child that compiles and runs host parts: `python -m tilewright.importing.host_child`, started by `recording`.

Everything it starts lives in its own empty folder, under limits on time, memory and files.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tilewright.child.envelope import message_in
from tilewright.child.inside import leave, open_channel
from tilewright.importing.host_program import header
from tilewright.importing.records import HostAnswer, HostRequest

_ADDRESS_BYTES = 4 << 30
_FILE_BYTES = 256 << 20
_MOST_OUTPUT = 8 << 20


def main(arguments: Sequence[str]) -> int:
    channel, _ = open_channel(arguments)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
    compiled = ""
    program: Path | str = ""
    while True:
        asked = message_in(channel.next(), HostRequest)
        try:
            if asked.source != compiled:  # the same program is asked several times
                program, compiled = compile_program(asked.source, Path.cwd(), asked.seconds), asked.source
            said = (
                HostAnswer("", program)
                if isinstance(program, str)
                else run_program(program, asked.calls, asked.seconds)
            )
        except subprocess.TimeoutExpired:
            said = HostAnswer("", f"the launcher or its compilation took more than {asked.seconds:g} s")
        channel.say(said)


def compile_program(text: str, folder: Path, seconds: float) -> Path | str:
    """The program, or the compiler's complaints."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return "no C++ compiler was found (c++, g++ or clang++); install one: it runs the launcher to see its launches"
    source, program = folder / "host.cpp", folder / "host"
    command = [compiler, "-std=c++17", "-O0", "-w", "-fno-diagnostics-color", "-I", str(folder)]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        whole = [*command, *arguments]
        return subprocess.run(whole, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)

    shared = folder / "recording_host.hpp"
    if not shared.exists():
        shared.write_text(header(), "utf-8")
    elif not (compiled := folder / "recording_host.hpp.gch").exists():  # the second program: more may come
        run("-x", "c++-header", str(shared), "-o", str(compiled))
    source.write_text(text, "utf-8")
    done = run(str(source), "-o", str(program))
    return program if done.returncode == 0 else done.stderr[:20_000] or "the C++ compiler failed"


def run_program(program: Path, calls: Sequence[str], seconds: float) -> HostAnswer:
    lines = "".join(f"{call}\n" for call in calls)
    done = subprocess.run(
        [str(program)], input=lines, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
    )
    died = "" if done.returncode == 0 else f"the launcher died (status {done.returncode}); it may read tensors' memory"
    return HostAnswer(done.stdout[:_MOST_OUTPUT], died)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
