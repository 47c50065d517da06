"""Lets the tests of the coordinator import what they share: `from group_world import World`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
