"""Lets the plays import what performs them: `from playing_groups import perform`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
