"""Where argand itself lies: what runs there is no code of the program."""

from __future__ import annotations

import os
from typing import Final

OWN_FOLDER: Final = os.path.dirname(os.path.abspath(__file__))
