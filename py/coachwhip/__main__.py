"""Runs the command line: `python -m coachwhip`."""

from .cli import main

if __name__ == "__main__":
    main()
