"""WSGIFAST_METRICS for gunicorn's ASGI workers."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from wsgifast.errors import ConfigurationError, MissingExtra
from wsgifast.imports import needs
from wsgifast.metrics.multiprocess import VARIABLE
from wsgifast.metrics.worker_setup import prepare_worker

from .exporting import begin

with needs("asgifast.workers", "gunicorn", "gunicorn"):
    from gunicorn.errors import AppImportError

if TYPE_CHECKING:
    from wsgifast.metrics.supervisor import Export

    class _Worker:
        cfg: Any
        ppid: int

        def load_wsgi(self) -> None: ...

        async def _serve(self) -> None: ...

else:
    _Worker = object

__all__ = ["Exporting"]


class Exporting(_Worker):
    """What a worker class has in front of gunicorn's or uvicorn's."""

    _export: Export | None = None

    def load_wsgi(self) -> None:
        """Load the app, when it is settled where its metrics go.

        :raises AppImportError: if they cannot be served; gunicorn prints it as a sentence.
        """
        address = os.environ.get(VARIABLE)
        if address and self.cfg.preload_app:
            raise AppImportError(
                f"{VARIABLE}={address!r}: with preload_app an ASGI app counts before its workers "
                "are there; leave preload_app out"
            )
        try:
            self._export = prepare_worker(self.ppid)
        except (ConfigurationError, MissingExtra) as error:
            raise AppImportError(str(error)) from None
        super().load_wsgi()

    async def _serve(self) -> None:
        if self._export is not None:
            begin(self._export, asyncio.get_running_loop())
        await super()._serve()
