"""A file that was found: what is said of it in each encoding, and whether it is still as it was."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from .directory import Directory, Identity, identity_of
from .memory import Kept
from .plan import Representation
from .variants import preferred_coding

__all__ = ["Found", "Source"]

# What is not a file's body: the objects kept for it in each encoding, when all answers that they
# remember have been asked for. Measured with tracemalloc; a test holds it to that.
_SOURCE_COST_BYTES = 10_000
# Each header's text is in memory at most this often: as made, and again as ASGI's bytes, in the
# answers to GET, HEAD, a range, and those without a body.
_HEADER_COPIES = 6


class Source:
    """A file that is sent, in one encoding: what is said of it, and where its bytes are.

    :ivar path: absolute; its directories may be links, so it is opened by :meth:`reopen` alone.
    """

    __slots__ = ("_directory", "identity", "path", "representation")

    def __init__(
        self,
        path: str,
        directory: Directory,
        identity: Identity,
        representation: Representation,
    ) -> None:
        self.path = path
        self.identity = identity
        self.representation = representation
        self._directory = directory

    def reopen(self) -> int | None:
        """Open the file that was described; None if it is not there as it was."""
        return self._directory.reopen(self.path, self.identity)

    def cost(self) -> int:
        """Bytes of memory at most; strings may take four a character."""
        representation = self.representation
        return (
            _SOURCE_COST_BYTES
            + 4 * len(self.path)
            + len(representation.body or b"")
            + _HEADER_COPIES * sum(len(n) + len(v) for n, v in representation.headers)
        )


class Found(Kept):
    """A file and its encoded siblings: what one URL path stands for, and what shows a change.

    :ivar cost: 0 for what may not be kept.
    """

    __slots__ = (
        "_absent",
        "_beside",
        "_codings",
        "_described_until",
        "_encoded",
        "_good_until",
        "_identity",
        "_recheck_s",
    )

    def __init__(
        self,
        identity: Source,
        encoded: Mapping[str, Source],
        *,
        beside: Sequence[tuple[str, Identity]],
        absent: Sequence[str],
        url: str,
        settled: bool,
        recheck_s: float,
    ) -> None:
        """
        :param identity: the file as it is.
        :param encoded: the siblings by coding in lower case, the favourite first.
        :param beside: what shows that other siblings are to be sent: the directory, since they come
            and go; those of no use, such as older ones, since they may be written over.
        :param absent: paths that go before this one, should a file appear there.
        :param url: the path that it is kept under.
        :param settled: whether a later change would show.
        :param recheck_s: seconds for which a look at the disk is good.
        """
        super().__init__(0)
        self._identity = identity
        self._encoded = encoded
        self._codings = tuple(encoded)
        self._beside = beside
        self._absent = absent
        self._recheck_s = recheck_s
        # time.monotonic() until which no look is needed; one for each question, since a look at the
        # file says nothing of its siblings' age.
        self._described_until = time.monotonic() + recheck_s
        self._good_until: dict[Source | None, float] = {}
        if settled:
            paths = [url, *absent, *(path for path, _ in beside)]
            self.cost = sum(4 * len(path) for path in paths)
            self.cost += sum(source.cost() for source in self.sources())

    def select(self, accept_encoding: str | None) -> Source:
        """Return what to send for a request's Accept-Encoding; None is a request without."""
        if accept_encoding is None or not self._codings:
            return self._identity
        coding = preferred_coding(accept_encoding, self._codings)
        return self._identity if coding is None else self._encoded[coding]

    def sources(self) -> list[Source]:
        return [self._identity, *self._encoded.values()]

    def unchanged(self, accept_encoding: str | None) -> Source | None:
        """Return what to send; None if the disk is not as it was, when it was looked at last.

        The paths are looked at by stat(), which follows links: it only has to tell the same files
        from others, and the same were let through when they were opened.
        """
        source = original = self._identity
        # For a client that takes encodings, siblings that have come or gone matter.
        negotiates = accept_encoding is not None
        if negotiates and self._codings:
            source = self.select(accept_encoding)
        if self._recheck_s:
            looked = source if negotiates else None
            now = time.monotonic()
            if now < self._good_until.get(looked, self._described_until):
                return source
            self._good_until[looked] = now + self._recheck_s
        try:
            if identity_of(os.stat(original.path)) != original.identity:
                return None
            if negotiates:
                if source is not original and identity_of(os.stat(source.path)) != source.identity:
                    return None
                for path, identity in self._beside:
                    if identity_of(os.stat(path)) != identity:
                        return None
        except OSError:
            return None
        if self._absent and any(map(os.path.lexists, self._absent)):
            return None
        return source
