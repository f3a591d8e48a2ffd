"""Puts this folder's helper modules in reach (the suite is collected in importlib mode)."""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
