"""Lets the tests of real processes import what they share: `from writing import Writer`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
