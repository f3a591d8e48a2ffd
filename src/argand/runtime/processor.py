"""What the system says of the processor."""

from __future__ import annotations

import functools
import os


@functools.cache
def facts() -> dict[str, str]:
    """Linux's description of the first processor, by name; empty where there is none."""
    values: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if not line.strip():  # of each there is a paragraph
                    break
                name, _, value = line.partition(":")
                values.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    return values


@functools.cache
def gathers() -> bool:
    """Whether one instruction that looks up all lanes of a vector is faster than one for each lane.

    On Intel's it is, but where microcode takes its time so that it tells no secrets.
    """
    try:
        with open("/sys/devices/system/cpu/vulnerabilities/gather_data_sampling", encoding="utf-8") as stream:
            return facts().get("vendor_id") == "GenuineIntel" and stream.read().startswith("Not affected")
    except OSError:
        return False


def count() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def model() -> str:
    """Maker and model: what the speed of a library depends on."""
    names = ("vendor_id", "cpu family", "model", "model name", "stepping")
    return ", ".join(facts()[name] for name in names if name in facts())
