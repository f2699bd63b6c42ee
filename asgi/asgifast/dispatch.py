"""Check whether the dispatch function of a BaseHTTPMiddleware accesses the response's body.

If an app sends a file by pathsend, Starlette puts the message into `response.body_iterator`, where
a dispatch function may expect bytes. So the source of the function is examined. Only some uses of
the response are known not to access the body, and all other uses count as an access. A function
counts as accessing the body if its source is missing, or has changed since the import.
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
_ALLOWED_ATTRIBUTES = frozenset(
    {"background", "charset", "delete_cookie", "headers", "media_type", "set_cookie", "status_code"}
)
# Names by which a function could access local variables or messages indirectly.
_INDIRECT_NAMES = frozenset({"dir", "eval", "exec", "locals", "vars"})
_FORBIDDEN_ATTRIBUTES = frozenset(
    {"_getframe", "_send", "body_iterator", "currentframe", "f_locals", "send"}
)
# The names of the arguments that an endpoint passes to an ASGI app.
_APP_ARGUMENTS = frozenset({"_receive", "_send", "receive", "send"})
# The most functions of an app that are examined for one endpoint.
_MAX_FUNCTIONS = 200


@lru_cache(maxsize=256)
def never_accesses_body(function: FunctionType, *, is_method: bool) -> bool:
    """Read the source of a dispatch function. Return whether it is known not to access the body.

    :param is_method: whether the function's first parameter is the middleware.
    """
    code = function.__code__
    source = "".join(linecache.getlines(code.co_filename, function.__globals__))
    try:
        node = _source_of(code, source)
        return node is not None and _ResponseUses(node, is_method).never_access_body()
    except (SyntaxError, ValueError, RecursionError):
        return False


def may_wrap_send(function: Any) -> bool:
    """Return whether an endpoint may call an ASGI app, such as a response, with another send().

    Such an endpoint uses the request's scope, and names or defines a receive() or send(). The
    functions that it calls by name and the functions that its decorators wrap are examined too.
    """
    to_examine = [function]
    examined: dict[int, Any] = {}
    packages: set[str] = set()
    while to_examine:
        found = to_examine.pop()
        while isinstance(found, partial):
            found = found.func
        if not isinstance(found, (FunctionType, MethodType)) and callable(found):
            found = type(found).__call__
        found = getattr(found, "__func__", found)
        if not isinstance(found, FunctionType) or id(found) in examined:
            continue
        package = str(found.__globals__.get("__name__")).partition(".")[0]
        if not examined:  # __module__ may be that of a decorated function (functools.wraps())
            packages |= {package, found.__module__.partition(".")[0]}
        if package not in packages:
            continue
        if len(examined) == _MAX_FUNCTIONS:
            return True
        examined[id(found)] = found
        codes = list(code_objects(found.__code__))
        names = {name for code in codes for name in (*code.co_names, *code.co_varnames)}
        if "scope" in names and (
            not _APP_ARGUMENTS.isdisjoint(names)
            or any(code.co_flags & inspect.CO_COROUTINE for code in codes[1:])
        ):
            return True
        variables = inspect.getclosurevars(found)
        to_examine += [
            each
            for each in (*variables.nonlocals.values(), *variables.globals.values())
            if isinstance(each, (FunctionType, MethodType))
        ]
    return False


def _source_of(code: CodeType, source: str) -> ast.AsyncFunctionDef | None:
    """Return the source of a code object, or None if the file has changed since the import."""
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
    """Return the code objects of a function and of the functions inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from code_objects(const)


def _targets(node: ast.AST) -> list[ast.expr]:
    """Return the targets of an assignment."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


class _ResponseUses:
    """Examines how a dispatch function uses call_next() and the response that it returns."""

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
        # Names of variables that may refer to the response.
        self._responses: set[str] = set()

    def never_access_body(self) -> bool:
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
            return node.id not in _INDIRECT_NAMES
        if isinstance(node, ast.Attribute):
            is_app = (
                node.attr == "app"
                and isinstance(node.value, ast.Name)
                and node.value.id == self._middleware
            )
            return node.attr not in _FORBIDDEN_ATTRIBUTES and not is_app
        if isinstance(node, ast.Call):  # this may call an app with another send()
            called = node.func
            return isinstance(called, ast.Name) or (
                isinstance(called, ast.Attribute) and called.attr != "app"
            )
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return self._responses.isdisjoint(node.names)
        return True

    def _is_allowed_use(self, node: ast.AST, parent: ast.AST) -> bool:
        if isinstance(parent, ast.Attribute):
            return parent.attr in _ALLOWED_ATTRIBUTES
        if targets := _targets(parent):
            is_renamed = isinstance(node, ast.Name)  # earlier lines may use the new name
            return not is_renamed and all(isinstance(each, ast.Name) for each in targets)
        if isinstance(parent, ast.Return):
            return self._function_of(node) is self._node
        return isinstance(parent, ast.Expr)

    def _function_of(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, (ast.AsyncFunctionDef, ast.FunctionDef, ast.Lambda)):
            node = self._parents[node]
        return node
