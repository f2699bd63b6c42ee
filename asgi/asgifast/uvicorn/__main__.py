"""python -m asgifast.uvicorn: run uvicorn's command with a supervisor."""

from __future__ import annotations

from .supervisor import main

if __name__ == "__main__":  # child processes of multiprocessing import this module too
    main()
