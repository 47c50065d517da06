"""Lets the tests of the client import what they share: `from serving import serving`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
