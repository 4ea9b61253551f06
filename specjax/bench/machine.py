"""What the machine can do and what else it is doing: memory bandwidth, and the share of processor that others use."""

import gc
import os
import platform
import time
from concurrent import futures
from importlib import metadata
from typing import NamedTuple

import jax
import numpy as np


class Ticks(NamedTuple):
    """Processor time since boot, in seconds: of all processes, and of this one."""

    busy: float
    own: float
    wall: float


def ticks() -> Ticks:
    """Reads /proc/stat; zeros where there is none."""
    own = time.process_time()
    try:
        with open("/proc/stat", encoding="ascii") as stat:
            fields = [float(x) for x in stat.readline().split()[1:9]]
    except OSError:
        return Ticks(0.0, own, time.perf_counter())
    idle = fields[3] + fields[4]
    return Ticks((sum(fields) - idle) / os.sysconf("SC_CLK_TCK"), own, time.perf_counter())


def others(start: Ticks, end: Ticks) -> float:
    """Share of all processors that other processes used between two readings; 0 on a quiet machine."""
    wall = (end.wall - start.wall) * (os.cpu_count() or 1)
    busy = max((end.busy - start.busy) - (end.own - start.own), 0.0)
    return busy / wall if wall else 0.0


def bandwidth(megabytes: int = 512, repeats: int = 3) -> float:
    """Bytes a second at which all processors together read a large array, best of several: what decoding could reach.

    One numpy reduction a processor, each over its own part; numpy lets go of the interpreter meanwhile.
    """
    count = os.cpu_count() or 1
    parts = np.array_split(np.ones((megabytes * 131_072,), np.float64), count)
    best = float("inf")
    with futures.ThreadPoolExecutor(count) as pool:
        for _ in range(repeats):
            started = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - started)
    return sum(part.nbytes for part in parts) / best


MAPS = 0.4  # share of the memory maps of a process that compiled programs may hold before they are forgotten


def forget_programs() -> bool:
    """Lets go of all compiled programs if they use up the memory maps that a process may have, and says whether it did.

    Linux allows 65,530; with none left, XLA dies of a segmentation fault. What is needed again is compiled again.
    """
    try:
        with open("/proc/self/maps", "rb") as maps, open("/proc/sys/vm/max_map_count", encoding="ascii") as limit:
            full = sum(1 for _ in maps) > MAPS * int(limit.read())
    except OSError:
        return False
    if full:
        jax.clear_caches()
        gc.collect()
    return full


def versions() -> dict[str, str]:
    """Versions of what was measured, and the device."""
    found = {"python": platform.python_version(), "device": jax.devices()[0].device_kind}
    for name in ("jax", "jaxlib", "flax", "torch", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def memory() -> float | None:
    """Bytes that are free for arrays: of the first accelerator, on a CPU of the machine; None where nobody says."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return float(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = dict(line.split(":") for line in lines)
        return 1024.0 * float(found["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None
