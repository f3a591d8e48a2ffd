"""Programs over real libraries, for `bench/libraries.py`: a module per area, each with `PROGRAMS: dict[str, Program]`.

A module imports its libraries inside the functions that make programs, so that one that is missing costs only its own.
"""
