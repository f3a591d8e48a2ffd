"""Lets the tests of this folder import its helper modules under any import mode; no example has a deadline."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

settings.register_profile("loaded machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded machine")
sys.path.insert(0, str(Path(__file__).parent))
