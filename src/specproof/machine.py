"""The machine's name for itself."""

import platform


def cpu_name() -> str:
    """The CPU's name; where the system does not tell it, its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
