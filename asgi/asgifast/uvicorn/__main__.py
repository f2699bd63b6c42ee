"""python -m asgifast.uvicorn: uvicorn's command line under a supervisor."""

from __future__ import annotations

from .supervisor import main

if __name__ == "__main__":  # multiprocessing's children import this module, too
    main()
