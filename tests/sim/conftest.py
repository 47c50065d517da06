"""Lets the tests here import what they share: `from quiet import Quiet`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
