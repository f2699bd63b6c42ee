"""The app that a target names, and the error if it names none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.servers import wait_for
from wsgifast.commands.loading import AppNotLoaded
from wsgifast.commands.loading.modules import named_module
from wsgifast.commands.loading.servers import Loaded, load_as

WSGI = "def app(environ, start_response): ...\n"
ASGI = "async def app(scope, receive, send): ...\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(files: dict[str, str]) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def loaded(target: str) -> Loaded:
    return load_as("gunicorn", target)


@pytest.mark.parametrize(
    "name",
    [
        "calendar.py",  # imported by other modules of Python's own
        "site.py",  # imported before any other
        "string.py",
        "sys.py",  # built into Python
        "tabnanny.py",  # Python's own, and not imported by any module
        "gunicorn.py",  # a package that a server has imported
        "app.v2.py",
        "2024-app.py",
        "my app.py",
        "package/calendar.py",
        "package/app.v2.py",
        "package/__init__.py",
        "package/deeper/__init__.py",
        "no_package/app.v2.py",
    ],
)
def test_file_target_is_the_one_that_is_named(name: str) -> None:
    write({"package/__init__.py": "", "package/deeper/__init__.py": ""})
    write({name: f"{ASGI}assert __file__.endswith({name!r})\n"})
    for target in (name, f"{name}:app", f"./{name}", os.path.abspath(name)):
        found = loaded(target)
        assert (found.interface, found.error) == ("ASGI", ""), target


def test_file_in_a_package_has_its_relative_imports() -> None:
    write({"package/__init__.py": "", "package/part.py": ASGI})
    write({"package/app.v2.py": "from .part import app\n"})
    assert loaded("package/app.v2.py").interface == "ASGI"


def test_failed_import_of_a_file_leaves_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    write({"broken.v2.py": "raise ValueError\n"})
    monkeypatch.setattr(sys, "path", sys.path[:])
    with pytest.raises(AppNotLoaded, match="ValueError"):
        named_module("broken.v2.py", "broken.v2.py")
    assert "broken_v2" not in sys.modules


def test_file_in_a_package_of_a_stdlib_name_is_loaded() -> None:
    write({"email/__init__.py": "", "email/app.py": f"import email.utils\n{WSGI}"})
    assert loaded("email/app.py").interface == "WSGI"


def test_file_is_loaded_although_a_namesake_is_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write({"first/app.py": WSGI, "second/app.py": ASGI, "second/part.py": ""})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([f"{tmp_path}/first", f"{tmp_path}/second"]))
    assert loaded("second/app.py").interface == "ASGI"
    assert loaded("first/app.py").interface == "WSGI"


def test_file_of_a_stdlib_name_leaves_that_module() -> None:
    write({"calendar.py": f"import calendar, email.utils\ncalendar.timegm\n{ASGI}"})
    found = loaded("calendar.py")
    assert (found.interface, found.target) == ("ASGI", "calendar.py:app")


FACTORY = """\
def wsgi(): return lambda environ, start_response: []
async def asgi(): ...
def nothing(): ...
def needs(name): ...
def fails():
    raise LookupError("the reason")
def other(): return 7
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wsgi()", "WSGI"),
        ("asgi()", "the factory is asynchronous, and no server awaits it"),
        ("asgi", "If it makes one, write 'factory:asgi()'"),
        ("nothing()", "factory:nothing(): nothing() has returned None"),
        ("fails()", "fails() failed: LookupError: the reason"),
        ("other()", "the app builtins.int is neither a WSGI nor"),
        ("needs()", "needs() failed: TypeError: needs() missing 1 required positional argument"),
    ],
)
def test_factory_makes_the_app_or_is_refused(name: str, expected: str) -> None:
    write({"factory.py": FACTORY})
    found = loaded(f"factory:{name}")
    assert expected in (found.interface or found.error), found


@pytest.mark.parametrize(
    ("target", "said"),
    [
        # The missing package is not the app's, although the app's name begins with that of the
        # package.
        ("shopfront:app", "importing shopfront failed: ModuleNotFoundError: No module named 'sho"),
        ("shopfront.py", "importing shopfront failed: ModuleNotFoundError: No module named 'sho"),
        ("shop:app", "shop:app: No module named 'shop' (did you mean 'shopfront'?); run this in "),
        ("package.nowhere:app", "No module named 'package.nowhere'; "),
        ("package.missing:app", "ModuleNotFoundError: No module named 'pack'"),
        ("module.wsgi:app", "No module named 'module.wsgi'; 'module' is not a package"),
        ("json:app", "/json/__init__.py'> has no 'app'; for the file here write json.py"),
        ("json", "make_app; for the file here write json.py"),
        ("module:app.__cal__", "has no 'app.__cal__' (did you mean '__call__'?)"),
        ("nowhere.py", "there is no file nowhere.py"),
    ],
)  # fmt: skip
def test_missing_module_or_app_is_named(target: str, said: str) -> None:
    write({
        "shopfront.py": f"import shop\n{WSGI}",
        "package/__init__.py": "",
        "package/missing.py": f"import pack\n{WSGI}",
        "module.py": WSGI,
        "json.py": WSGI,
    })  # fmt: skip
    assert said in loaded(target).error


def test_effects_of_an_import_stay_in_its_process() -> None:
    write({
        "app.py": f"""\
import os, subprocess, sys, threading, time
os.chdir("/")
os.environ["LEFT_BEHIND"] = "1"
print("noise"); print("noise", file=sys.stderr)
threading.Thread(target=time.sleep, args=[3600]).start()
open({str(Path("pid").absolute())!r}, "w").write(str(subprocess.Popen(["sleep", "3600"]).pid))
{WSGI}"""
    })  # fmt: skip
    before = os.getcwd()
    assert loaded("app.py").interface == "WSGI"
    assert os.getcwd() == before
    assert "LEFT_BEHIND" not in os.environ
    child = Path("pid").read_text()

    def has_ended() -> bool:
        try:
            state = Path(f"/proc/{child}/stat").read_text()
        except FileNotFoundError:
            return True
        return state.rpartition(") ")[2].startswith("Z")

    wait_for(has_ended, "what the app has started ends with it")


def test_import_that_ends_python_is_reported() -> None:
    write({"app.py": "import os, sys\nprint('the reason', file=sys.stderr)\nos._exit(7)\n"})
    with pytest.raises(AppNotLoaded, match=r"ended Python with status 7\. the reason"):
        loaded("app.py")
