"""What a run ran on: versions and machine, as data."""

import os
import platform
from importlib.metadata import version
from typing import Any

from specproof import __version__


def versions() -> dict[str, str]:
    """Versions of what decides about results."""
    packages = {name: version(name) for name in ("torch", "transformers")}
    return {"specproof": __version__, "python": platform.python_version(), **packages}


def machine() -> dict[str, Any]:
    """The system, the CPU, and how many threads PyTorch uses."""
    import torch

    return {
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _cpu_name() -> str:
    """The CPU's name; where the system does not tell it, its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
