"""GPUs as data: what a launch plan, an occupancy calculation and a performance floor need to know of one."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a")


def arch_of(cc: int) -> str:
    """The exact build target of a compute capability: `sm_90a` for 90."""
    return f"sm_{cc}a" if cc >= 90 else f"sm_{cc}"


def cc_of(arch: str) -> int:
    """90 for `sm_90a`."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def runs_on(arch: str, cc: int) -> bool:
    """Whether a cubin for `arch` loads on a compute capability: `sm_90a` on 90 alone, `sm_80` on 80 to 89."""
    if arch.endswith("a"):
        return cc_of(arch) == cc
    return cc_of(arch) // 10 == cc // 10 and cc_of(arch) <= cc


@dataclass(frozen=True)
class GpuProfile:
    """One kind of GPU. The first block is what a plan sees as `device`; the rest serves occupancy and roofline."""

    name: str
    cc: int
    sms: int
    smem_block: int  # most dynamic bytes a block may ask for
    smem_sm: int
    l2: int

    registers_sm: int = 65536
    threads_sm: int = 2048
    blocks_sm: int = 32
    reserved_smem_block: int = KIB
    max_cluster: int = 1
    memory_bytes: int = 0
    bandwidth_gbs: float = 0.0  # vendor's figure for device memory, GB/s; 0 where unknown

    @property
    def arch(self) -> str:
        return arch_of(self.cc)


def _profile(name: str, cc: int, sms: int, l2_mib: int, memory_gb: int, bandwidth_gbs: float) -> GpuProfile:
    smem_kib, threads, blocks = _PER_SM[cc]
    reserved = KIB if cc >= 80 else 0
    return GpuProfile(
        name=name,
        cc=cc,
        sms=sms,
        smem_block=smem_kib * KIB - reserved,
        smem_sm=smem_kib * KIB,
        l2=l2_mib * MIB,
        threads_sm=threads,
        blocks_sm=blocks,
        reserved_smem_block=reserved,
        max_cluster=16 if cc in (90, 100, 103) else 8 if cc >= 120 else 1,
        memory_bytes=memory_gb * 10**9,
        bandwidth_gbs=bandwidth_gbs,
    )


# compute capability -> (shared memory per SM in KiB, threads per SM, blocks per SM)
_PER_SM = {
    75: (64, 1024, 16),
    80: (164, 2048, 32),
    86: (100, 1536, 16),
    89: (100, 1536, 24),
    90: (228, 2048, 32),
    100: (228, 2048, 32),
    103: (228, 2048, 32),
    120: (100, 1536, 24),
    121: (100, 1536, 24),
}

PROFILES: dict[str, GpuProfile] = {
    p.name: p
    for p in (
        _profile("T4", 75, 40, 4, 16, 320.0),
        _profile("A100", 80, 108, 40, 80, 2039.0),
        _profile("A10", 86, 72, 6, 24, 600.0),
        _profile("L4", 89, 58, 48, 24, 300.0),
        _profile("RTX 4090", 89, 128, 72, 24, 1008.0),
        _profile("H100", 90, 132, 50, 80, 3350.0),
        _profile("H200", 90, 132, 60, 141, 4800.0),
        _profile("B200", 100, 148, 126, 180, 8000.0),
        _profile("B300", 103, 148, 126, 270, 8000.0),
        _profile("RTX 5090", 120, 170, 96, 32, 1792.0),
        _profile("GB10", 121, 48, 24, 128, 273.0),
    )
}

# The profile that stands for an architecture when only the architecture is named.
TYPICAL = {
    "sm_75": PROFILES["T4"],
    "sm_80": PROFILES["A100"],
    "sm_86": PROFILES["A10"],
    "sm_89": PROFILES["RTX 4090"],
    "sm_90a": PROFILES["H200"],
    "sm_100a": PROFILES["B200"],
    "sm_103a": PROFILES["B300"],
    "sm_120a": PROFILES["RTX 5090"],
    "sm_121a": PROFILES["GB10"],
}
