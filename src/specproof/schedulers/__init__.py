"""Who decodes in the next step, and who enters the batch."""

from specproof.schedulers.continuous import Continuous
from specproof.schedulers.same_length import SameLength
from specproof.schedulers.scheduler import Schedule, Scheduler
from specproof.schedulers.static import Static

SCHEDULERS = {"continuous": Continuous, "static": Static, "same-length": SameLength}

__all__ = ["SCHEDULERS", "Continuous", "SameLength", "Schedule", "Scheduler", "Static"]
