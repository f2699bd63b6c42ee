"""StaticFilesMiddleware, which replaces WhiteNoise's middleware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ..bodies.files import request_facts
from .responses import response_to
from .sites import Site, static_sites


class StaticFilesMiddleware:
    """Serves static files as :class:`wsgifast.StaticFiles` does.

    Put it right after SecurityMiddleware, which then adds its headers to static files, and before
    all others. Other requests are passed on. Under ASGI, cached files are answered on the event
    loop, and others are looked up in a thread.

    See :mod:`wsgifast.django.settings` for the settings.

    :raises ConfigurationError: if a setting has an invalid value.
    """

    sync_capable = True
    async_capable = True

    def __init__(
        self, get_response: Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]
    ) -> None:
        self.get_response = get_response
        self._sites = static_sites()
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_async:
            return self._answer_async(request)
        for site in self._sites_for(request):
            facts = request_facts(request.META)
            answer = site.answer_kept(facts, request.path_info) or site.look_up(
                facts, request.path_info, request.META.get("QUERY_STRING", "")
            )
            if answer is not None:
                return response_to(request, answer)
        return self.get_response(request)

    async def _answer_async(self, request: HttpRequest) -> HttpResponseBase:
        for site in self._sites_for(request):
            facts = request_facts(request.META)
            answer = site.answer_kept(facts, request.path_info)
            if answer is None:
                look_up = sync_to_async(site.look_up, thread_sensitive=False)
                answer = await look_up(
                    facts, request.path_info, request.META.get("QUERY_STRING", "")
                )
            if answer is not None:
                return response_to(request, answer)
        return await self.get_response(request)

    def _sites_for(self, request: HttpRequest) -> list[Site]:
        if request.method not in ("GET", "HEAD"):
            return []
        path = request.path_info
        return [site for prefix, site in self._sites if path.startswith(prefix)]
