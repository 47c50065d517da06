"""Lets the tests of the server import what they share: `from settling import settle`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
