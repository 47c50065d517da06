"""Lets the tests of the log import what they share: `from building import new_world`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
