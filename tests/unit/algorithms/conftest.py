"""Puts this folder, whose literal forms and comparisons its tests share, on the import path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
