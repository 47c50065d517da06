"""Lets the tests of the load generator import it: `from bench import load`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent.parent))
