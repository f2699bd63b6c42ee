"""Whether the dispatch function of a BaseHTTPMiddleware leaves the response's body alone.

Starlette passes a file on as a message in `response.body_iterator`, among bytes, where the function
may expect bytes only. So its source is examined. Every use of the response must be known to leave
the body alone. Any other use counts as touching it. So does a function without source, or with a
source that is not the one that runs.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType
from typing import Any

# Attributes of the response that may be read and set.
_HARMLESS = frozenset(
    {"background", "charset", "delete_cookie", "headers", "media_type", "set_cookie", "status_code"}
)
# Names by which a function reaches local variables, or the messages, in another way.
_BACK_DOORS = frozenset({"dir", "eval", "exec", "locals", "vars"})
_BACK_DOOR_ATTRIBUTES = frozenset(
    {"_getframe", "_send", "body_iterator", "currentframe", "f_locals", "send"}
)
# The arguments that an endpoint passes to an ASGI app.
_SENDING = frozenset({"_receive", "_send", "receive", "send"})
# The most functions of an app that are examined behind one endpoint.
_MAX_FOLLOWED = 200


@lru_cache(maxsize=256)
def leaves_bodies_alone(function: FunctionType, *, is_method: bool) -> bool:
    """Return whether a dispatch function is known to touch no body. Its source is read.

    :param is_method: its first parameter is the middleware.
    """
    code = function.__code__
    source = "".join(linecache.getlines(code.co_filename, function.__globals__))
    try:
        node = _source_of(code, source)
        return node is not None and _Look(node, is_method).is_harmless()
    except (SyntaxError, ValueError, RecursionError):
        return False


def may_wrap_send(function: Any) -> bool:
    """Whether an endpoint may call an ASGI app, such as a response, with a send() of its own.

    For that it needs the request's scope, and names a receive() or send(), or makes one. Functions
    that it calls by name, or that a decorator keeps, are looked at, too.
    """
    waiting = [function]
    seen: dict[int, Any] = {}
    packages: set[str] = set()
    while waiting:
        found = waiting.pop()
        while isinstance(found, partial):
            found = found.func
        if not isinstance(found, (FunctionType, MethodType)) and callable(found):
            found = type(found).__call__
        found = getattr(found, "__func__", found)
        if not isinstance(found, FunctionType) or id(found) in seen:
            continue
        package = str(found.__globals__.get("__name__")).partition(".")[0]
        if not seen:  # functools.wraps() copies __module__ from the decorated function
            packages |= {package, found.__module__.partition(".")[0]}
        if package not in packages:
            continue
        if len(seen) == _MAX_FOLLOWED:
            return True
        seen[id(found)] = found
        codes = list(code_objects(found.__code__))
        names = {name for code in codes for name in (*code.co_names, *code.co_varnames)}
        if "scope" in names and (
            not _SENDING.isdisjoint(names)
            or any(code.co_flags & inspect.CO_COROUTINE for code in codes[1:])
        ):
            return True
        known = inspect.getclosurevars(found)
        waiting += [
            each
            for each in (*known.nonlocals.values(), *known.globals.values())
            if isinstance(each, (FunctionType, MethodType))
        ]
    return False


def _source_of(code: CodeType, source: str) -> ast.AsyncFunctionDef | None:
    """The source of a code object, if it is known to be that: a file may have changed since."""
    compiled = compile(source, code.co_filename, "exec", dont_inherit=True)
    if code not in code_objects(compiled):
        return None
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AsyncFunctionDef) and node.name == code.co_name:
            line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if line == code.co_firstlineno:
                return node
    return None


def code_objects(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of those inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from code_objects(const)


def _targets(node: ast.AST) -> list[ast.expr]:
    """Return the targets of an assignment."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


class _Look:
    """A look at every use of the response, and of call_next(), which makes it."""

    def __init__(self, node: ast.AsyncFunctionDef, is_method: bool) -> None:
        self._node = node
        self._parents = {
            child: parent for parent in ast.walk(node) for child in ast.iter_child_nodes(parent)
        }
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        self._middleware = names.pop(0) if is_method and names else None
        self._has_known_parameters = len(names) == 2 and not (
            node.args.vararg or node.args.kwarg or node.args.kwonlyargs or node.args.defaults
        )
        self._call_next = names[-1] if names else ""
        # Variables that may have the response.
        self._responses: set[str] = set()

    def is_harmless(self) -> bool:
        if not self._has_known_parameters:
            return False
        nodes = [each for part in self._node.body for each in ast.walk(part)]
        for each in nodes:
            if self._is_response(each):
                targets = _targets(self._parents[each])
                self._responses.update(name.id for name in targets if isinstance(name, ast.Name))
        return all(map(self._is_allowed, nodes))

    def _is_response(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Await):
            return isinstance(node.value, ast.Call) and self._is_call_next(node.value.func)
        return (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and node.id in self._responses
        )

    def _is_call_next(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self._call_next

    def _is_allowed(self, node: ast.AST) -> bool:
        parent = self._parents[node]
        if self._is_response(node):
            return self._is_allowed_use(node, parent)
        if isinstance(node, ast.Name):
            if self._is_call_next(node):
                return (
                    isinstance(parent, ast.Call)
                    and parent.func is node
                    and isinstance(self._parents[parent], ast.Await)
                )
            return node.id not in _BACK_DOORS
        if isinstance(node, ast.Attribute):
            is_app = (
                node.attr == "app"
                and isinstance(node.value, ast.Name)
                and node.value.id == self._middleware
            )
            return node.attr not in _BACK_DOOR_ATTRIBUTES and not is_app
        if isinstance(node, ast.Call):  # of an app, with a send() of its own
            called = node.func
            return isinstance(called, ast.Name) or (
                isinstance(called, ast.Attribute) and called.attr != "app"
            )
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return self._responses.isdisjoint(node.names)
        return True

    def _is_allowed_use(self, node: ast.AST, parent: ast.AST) -> bool:
        if isinstance(parent, ast.Attribute):
            return parent.attr in _HARMLESS
        if targets := _targets(parent):
            is_renamed = isinstance(node, ast.Name)  # perhaps behind the use of its new name
            return not is_renamed and all(isinstance(each, ast.Name) for each in targets)
        if isinstance(parent, ast.Return):
            return self._function_of(node) is self._node
        return isinstance(parent, ast.Expr)

    def _function_of(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, (ast.AsyncFunctionDef, ast.FunctionDef, ast.Lambda)):
            node = self._parents[node]
        return node
