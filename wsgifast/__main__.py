"""`python -m wsgifast` is the command `wsgifast`."""

from .commands.cli import program

if __name__ == "__main__":
    program()
