"""Lets the tests of the broker import what they share: `from simulated import World`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
