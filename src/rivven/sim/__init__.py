"""The world in one thread: a disk that loses power at will, a clock that obeys, and chance from a seed."""

from .clock import SimClock, SimEntropy
from .disk import Halted, Loss, SimDisk

__all__ = ["Halted", "Loss", "SimClock", "SimDisk", "SimEntropy"]
