"""`python -m argand`: the command line, for the Python that runs it."""

from argand.cli import main

if __name__ == "__main__":
    main()
