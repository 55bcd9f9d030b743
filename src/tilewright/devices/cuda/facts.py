"""A GPU of this machine as a profile: what plans, occupancy and rooflines need to know, from the driver."""

from __future__ import annotations

import functools
import re

from tilewright.devices.cuda import driver
from tilewright.records import PROFILES, GpuProfile

_LARGE_CLUSTERS = frozenset({90, 100, 103})  # compute capabilities that take clusters of 16 blocks


@functools.cache
def gpu_profile(index: int) -> GpuProfile:
    """The profile of cuda:`index`."""
    read = functools.partial(driver.attribute, index)
    name = driver.device_name(index)
    cc = 10 * read("COMPUTE_CAPABILITY_MAJOR") + read("COMPUTE_CAPABILITY_MINOR")
    return GpuProfile(
        name=name,
        cc=cc,
        sms=read("MULTIPROCESSOR_COUNT"),
        smem_block=read("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        smem_sm=read("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        l2=read("L2_CACHE_SIZE"),
        registers_sm=read("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        threads_sm=read("MAX_THREADS_PER_MULTIPROCESSOR"),
        blocks_sm=read("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        reserved_smem_block=read("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        max_cluster=largest_cluster(cc, bool(read("CLUSTER_LAUNCH"))),
        memory_bytes=driver.device_memory_bytes(index),
        bandwidth_gbs=vendor_bandwidth_gbs(name, cc),
    )


def profiles() -> tuple[GpuProfile, ...]:
    """The profiles of every GPU the driver shows, cuda:0 first."""
    return tuple(gpu_profile(index) for index in range(driver.device_count()))


def largest_cluster(cc: int, launches_clusters: bool) -> int:
    """Blocks a cluster may have: the driver tells whether there are clusters, not how large they may be."""
    if not launches_clusters:
        return 1
    return 16 if cc in _LARGE_CLUSTERS else driver.PORTABLE_CLUSTER_BLOCKS


def vendor_bandwidth_gbs(name: str, cc: int) -> float:
    """The vendor's figure for a GPU that is known by name; 0 where it is not."""
    words = set(re.split(r"[^A-Za-z0-9]+", name))
    for profile in PROFILES.values():
        if profile.cc == cc and set(profile.name.split()) <= words:
            return profile.bandwidth_gbs
    return 0.0
