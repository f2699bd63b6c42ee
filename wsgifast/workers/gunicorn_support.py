"""What is used of gunicorn beyond its documented interface.

FastWorker takes gunicorn's request parsers, its chunk parser, its loggers and its HTTP/2 code as
they are. They are not a public interface, so the range of versions is stated (gunicorn_version.py),
checked when the server starts, and tested at both ends.
"""

from __future__ import annotations

from typing import Any

from gunicorn.config import Config
from gunicorn.http.message import MAX_REQUEST_LINE, _ip_in_allow_list

__all__ = ["Settings", "head_limit"]


class Settings:
    """gunicorn's configuration, frozen: reading a setting is an attribute, not four calls.

    The parser reads a dozen settings for each request. What it would decide for each of them,
    whether the peer is in forwarded_allow_ips, :meth:`trusts` decides once for each connection.
    """

    def __init__(self, cfg: Config) -> None:
        self._cfg = cfg
        self.forwarded_allow_ips: list[str] = []
        for name, setting in cfg.settings.items():
            if not hasattr(type(cfg), name):  # computed ones stay with the original
                setattr(self, name, setting.get())
        self.is_ssl: bool = cfg.is_ssl
        self.uses_uwsgi: bool = getattr(self, "protocol", "http") == "uwsgi"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cfg, name)

    def for_trusted_peers(self) -> Settings:
        """A copy in which every peer counts as one of forwarded_allow_ips."""
        trusted = Settings(self._cfg)
        trusted.forwarded_allow_ips = ["*"]
        return trusted

    def trusts(self, peer: object) -> bool:
        """Whether a peer's address is in forwarded_allow_ips, as gunicorn itself decides it."""
        if not isinstance(peer, tuple):
            return True  # a Unix socket: who may connect is decided by its permissions
        networks = getattr(self._cfg, "forwarded_allow_networks", None)
        if networks is None:
            return "*" in self.forwarded_allow_ips or peer[0] in self.forwarded_allow_ips
        return bool(_ip_in_allow_list(peer[0], self.forwarded_allow_ips, networks()))


def head_limit(settings: Settings) -> int:
    """The most bytes that a head may have: gunicorn's own sum of its limits (Message.__init__)."""
    fields = settings.limit_request_fields
    if not 0 < fields <= 32768:
        fields = 32768
    field_size = settings.limit_request_field_size or 8190
    line = settings.limit_request_line or 1024 * 1024
    return int(fields * (max(field_size, 0) + 2) + 4 + max(line, MAX_REQUEST_LINE))
