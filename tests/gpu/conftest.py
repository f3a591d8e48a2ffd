"""Puts this folder's helper modules in reach (behind bench/, which has modules of the same names)."""

import os
import sys

sys.path.append(os.path.dirname(__file__))
