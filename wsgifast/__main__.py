"""`python -m wsgifast` is the command `wsgifast`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
