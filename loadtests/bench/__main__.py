"""python -m loadtests.bench APP PATH...: see loadtests.bench.compare."""

from .compare import main

raise SystemExit(main())
