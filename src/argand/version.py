"""Which argand this is: apart, so that what every layer prints does not need the package's front door."""

__version__ = "0.1.0"
