"""Where candidates run: on a GPU that is reached through a spool, on one of this machine, or emulated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tilewright.devices.cuda import DriverError, profiles
from tilewright.devices.cuda_device import CudaDevice
from tilewright.devices.emulated_device import EmulatedDevice
from tilewright.devices.protocol import Device
from tilewright.devices.spool import SpoolDevice
from tilewright.frontends.arguments import BadArgument
from tilewright.records import ARCHITECTURES, PROFILES, TYPICAL, GpuProfile, Task
from tilewright.reference.spooled import SpoolReference

SPOOL_SECONDS = 20.0  # to wait for a worker to announce itself
EMULATED = "(emulated)"


@dataclass(frozen=True)
class Place:
    """Where kernels are verified and timed, for which known GPU. `index`: a GPU of this machine; `spool`: a folder."""

    gpu: str  # a name of `PROFILES`
    label: str  # "H200 (emulated)", "NVIDIA H200 (cuda:0)"
    index: int | None = None
    spool: str = ""
    note: str = ""  # why not on the GPU that is here

    @property
    def is_emulated(self) -> bool:
        return self.index is None and not self.spool

    @property
    def words(self) -> str:
        times = "times are modelled, not measured" if self.is_emulated else "times are measured"
        return f"{self.label}; {times}{f'; {self.note}' if self.note else ''}"


def choose_place(gpu: str | None, spool: str = "") -> Place:
    """The place for a GPU that was asked for by name or architecture, or for the one at hand where none was."""
    wanted = None if gpu is None else named_gpu(gpu)
    if spool:
        return _spool_place(wanted, spool)
    local = _local_profiles()
    for index, profile in enumerate(local):
        if wanted is None or known_profile(profile) == wanted or gpu in (profile.arch, profile.arch.rstrip("a")):
            return Place(known_profile(profile).name, f"{profile.name} (cuda:{index})", index)
    target = wanted or PROFILES["H200"]
    note = f"this machine has {local[0].name}, not {target.name}" if local else ""
    return emulated_place(target.name, note)


def emulated_place(gpu: str, note: str = "") -> Place:
    return Place(gpu, f"{gpu} {EMULATED}", note=note)


def same_place(label: str, gpu: str, spool: str) -> Place:
    """The place to go on with a run that has been at `label`: measured and modelled times are never mixed."""
    if label.endswith(EMULATED):
        if spool:
            raise BadArgument("this run's times are modelled, and go on so; make it anew with --fresh --spool DIR")
        return emulated_place(gpu, "as this run began")
    place = choose_place(gpu, spool)
    if place.is_emulated:
        raise BadArgument(
            f"this run was measured on {label}, and no such GPU is here; resume it there, or reach one with --spool DIR"
        )
    return place


@contextmanager
def open_devices(place: Place) -> Iterator[tuple[Device, Device | None]]:
    """The emulator, and the GPU where the place has one. Their processes start with the first job.

    Through a spool every job runs anew: a time that was measured for another run is not this one's.
    """
    with ExitStack() as stack:
        emulator = stack.enter_context(EmulatedDevice(PROFILES[place.gpu]))
        if place.spool:
            yield emulator, stack.enter_context(SpoolDevice(place.spool, arch=PROFILES[place.gpu].arch, fresh=True))
        elif place.index is not None:
            yield emulator, stack.enter_context(CudaDevice(place.index))
        else:
            yield emulator, None


def gpu_reference(place: Place, task: Task, gpu: Device | None) -> SpoolReference | None:
    """The task's reference where the GPU is; None where that is this machine, or where there is no GPU."""
    if not place.spool or gpu is None:
        return None
    return SpoolReference(place.spool, task.reference, task.function, gpu=gpu.profile)


def named_gpu(text: str) -> GpuProfile:
    """A known GPU by its name or its architecture: `H200`, `rtx4090`, `sm_90a`, `sm_90`."""
    plain = text.lower().replace(" ", "")
    for full in (plain, f"{plain}a"):  # sm_90 is built as sm_90a: the device is targeted exactly
        if full in TYPICAL:
            return TYPICAL[full]
    for name, profile in PROFILES.items():
        if name.lower().replace(" ", "") == plain:
            return profile
    raise BadArgument(
        f"{text} is no GPU known here; write one of {', '.join(PROFILES)}, or one of {', '.join(ARCHITECTURES)}"
    )


def known_profile(profile: GpuProfile) -> GpuProfile:
    """The known GPU that a device of the driver is, or the typical one of its architecture."""
    words = set(re.split(r"[^A-Za-z0-9]+", profile.name))
    for known in PROFILES.values():
        if known.cc == profile.cc and set(known.name.split()) <= words:
            return known
    if profile.arch not in TYPICAL:
        raise BadArgument(f"{profile.name} has architecture {profile.arch}; known are {', '.join(ARCHITECTURES)}")
    return TYPICAL[profile.arch]


def _local_profiles() -> tuple[GpuProfile, ...]:
    try:
        return profiles()
    except DriverError:
        return ()


def _spool_place(wanted: GpuProfile | None, spool: str) -> Place:
    if not Path(spool).is_dir():
        raise BadArgument(
            f"--spool {spool}: there is no such folder; start `python -m tilewright.worker {spool}` where a GPU is"
        )
    with SpoolDevice(spool, arch=wanted.arch if wanted else None, timeout=SPOOL_SECONDS) as device:
        found = device.profile
    return Place((wanted or known_profile(found)).name, f"{found.name} (spool {spool})", spool=spool)
