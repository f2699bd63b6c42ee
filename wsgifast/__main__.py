"""`python -m wsgifast` is the command `wsgifast`."""

from .cli import program

if __name__ == "__main__":
    program()
