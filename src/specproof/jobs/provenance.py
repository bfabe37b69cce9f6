"""What a run ran on: versions and machine, as data."""

import os
import platform
from importlib.metadata import version
from typing import Any

from specproof import __version__
from specproof.machine import cpu_name


def versions() -> dict[str, str]:
    """Versions of what decides about results."""
    packages = {name: version(name) for name in ("torch", "transformers")}
    return {"specproof": __version__, "python": platform.python_version(), **packages}


def machine() -> dict[str, Any]:
    """The system, the CPU, and how many threads PyTorch uses."""
    import torch

    return {
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
