"""The world in one thread: a disk that loses power at will, a network that is cut, a clock that obeys, and chance
from a seed; a store and a broker that live in it, and the checkers of what they promised."""

from .agenda import Agenda
from .checkers import CHECKERS, Checker, examine
from .chronicle import Anomaly, Chronicle
from .clock import SimClock, SimEntropy
from .disk import Halted, Loss, SimDisk
from .network import SimNetwork, SimSocket, Weather

__all__ = [
    "CHECKERS",
    "Agenda",
    "Anomaly",
    "Checker",
    "Chronicle",
    "Halted",
    "Loss",
    "SimClock",
    "SimDisk",
    "SimEntropy",
    "SimNetwork",
    "SimSocket",
    "Weather",
    "examine",
]
