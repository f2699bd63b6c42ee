"""collectstatic into the compressing storages."""

from __future__ import annotations

import gc
import gzip
import io
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.test import override_settings

CSS = b"body { color: red; background: url(image.svg) }\n" * 50


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of static files: a style sheet, a file that it names, and incompressible ones."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "style.css").write_bytes(CSS)
    (folder / "image.svg").write_bytes(b"<svg>" + b"<g/>" * 200 + b"</svg>")
    (folder / "photo.jpg").write_bytes(b"x" * 5000)
    return folder


@pytest.fixture
def target(source: Path, tmp_path: Path) -> Iterator[Path]:
    """The folder STATIC_ROOT."""
    with override_settings(
        STATIC_ROOT=tmp_path / "target",
        STATICFILES_DIRS=[source],
        STATICFILES_FINDERS=["django.contrib.staticfiles.finders.FileSystemFinder"],
    ):
        yield tmp_path / "target"


def collect(storage: str, **options: Any) -> str:
    backend = {"BACKEND": f"wsgifast.django.storage.{storage}"}
    out = io.StringIO()
    with override_settings(STORAGES={**settings.STORAGES, "staticfiles": backend}):
        call_command("collectstatic", interactive=False, verbosity=2, stdout=out, **options)
    return out.getvalue()


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_storage_compresses_collected_files(target: Path) -> None:
    printed = collect("CompressedStaticFilesStorage")
    found = names(target)
    assert {"style.css", "style.css.gz", "style.css.br", "style.css.zst", "photo.jpg"} <= found
    assert "photo.jpg.gz" not in found
    assert gzip.decompress((target / "style.css.gz").read_bytes()) == CSS
    for precompressed in ("style.css.br", "style.css.gz", "style.css.zst"):
        assert printed.count(f"Post-processed 'style.css' as '{precompressed}'") == 1
    assert "style.css.gz" not in collect("CompressedStaticFilesStorage")


def test_changed_file_is_compressed_again(source: Path, target: Path) -> None:
    collect("CompressedStaticFilesStorage")
    (source / "style.css").write_bytes(CSS + b"/* more */")
    (target / "style.css").unlink()
    assert "style.css.gz" in collect("CompressedStaticFilesStorage")
    assert gzip.decompress((target / "style.css.gz").read_bytes()) == CSS + b"/* more */"


def test_precompressed_of_other_storage_is_made_again(target: Path) -> None:
    """Older than the files that Django writes, as WhiteNoise leaves it when a project moves."""
    backend = {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"}
    with override_settings(STORAGES={**settings.STORAGES, "staticfiles": backend}):
        call_command("collectstatic", interactive=False, verbosity=0)
    for path in target.iterdir():
        if path.suffix == ".gz":
            os.utime(path, (1, 1))
    collect("CompressedManifestStaticFilesStorage")
    hashed = target / hashed_names(target)["style.css"]
    precompressed = hashed.with_name(f"{hashed.name}.gz")
    assert precompressed.stat().st_mtime_ns == hashed.stat().st_mtime_ns
    assert "style.css.gz" not in collect("CompressedManifestStaticFilesStorage")


def test_dry_run_writes_nothing(target: Path) -> None:
    for storage in ("CompressedStaticFilesStorage", "CompressedManifestStaticFilesStorage"):
        collect(storage, dry_run=True)
        assert names(target) == set()


def hashed_names(target: Path) -> dict[str, str]:
    paths: dict[str, str] = json.loads((target / "staticfiles.json").read_bytes())["paths"]
    return paths


def test_manifest_storage_compresses_hashed_files(target: Path) -> None:
    collect("CompressedManifestStaticFilesStorage")
    style = hashed_names(target)["style.css"]
    assert {"style.css", "style.css.gz", style, f"{style}.gz", f"{style}.br"} <= names(target)
    content = gzip.decompress((target / f"{style}.gz").read_bytes())
    assert hashed_names(target)["image.svg"].encode() in content


@pytest.mark.parametrize(
    "setting",
    [
        {"WHITENOISE_KEEP_ONLY_HASHED_FILES": True},
        {"WSGIFAST_STATIC": {"keep_only_hashed": True, "codings": ["gzip"]}},
    ],
)
def test_keep_only_hashed_removes_the_others(target: Path, setting: dict[str, Any]) -> None:
    with override_settings(**setting):
        for _ in range(2):
            collect("CompressedManifestStaticFilesStorage")
            remaining = {
                name for name in names(target) if not name.endswith((".gz", ".br", ".zst"))
            }
            manifests = {"staticfiles.json", ".wsgifast-compress.json"}
            assert remaining == {*hashed_names(target).values(), *manifests}
    codings = {name.rpartition(".")[2] for name in names(target)} & {"br", "zst"}
    assert not codings if "WSGIFAST_STATIC" in setting else codings


def test_skipped_extension_is_not_compressed(target: Path) -> None:
    with override_settings(WHITENOISE_SKIP_COMPRESS_EXTENSIONS=("css", ".SVG")):
        collect("CompressedStaticFilesStorage")
    assert {"style.css.gz", "image.svg.gz"}.isdisjoint(names(target))
    assert "photo.jpg.gz" in names(target)


@pytest.mark.parametrize(
    ("name", "url", "texts"),
    [
        (
            "style.css",
            "gone.svg",
            ["'gone.svg', which is not among", "The file 'gone.svg' could not"],
        ),
        ("css/deep.css", "../img/it\\'s gone.png", ["img/it"]),
    ],
)
def test_missing_file_and_referring_file_are_named(
    source: Path, target: Path, name: str, url: str, texts: list[str]
) -> None:
    (source / "css").mkdir()
    (source / name).write_text(f"a {{ background: url('{url}') }}")
    with warnings.catch_warnings():
        # Django does not close the style sheet. Another test would report that.
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises((CommandError, ValueError)) as caught:
            collect("CompressedManifestStaticFilesStorage")
        gc.collect()
    assert str(caught.value).startswith(f"{name} refers to")
    assert all(text in str(caught.value) for text in texts), str(caught.value)
    caught.value.__traceback__ = None


def test_manifest_without_strict_passes_missing_files(target: Path) -> None:
    from django.contrib.staticfiles.storage import staticfiles_storage

    backend = {"BACKEND": "wsgifast.django.storage.CompressedManifestStaticFilesStorage"}
    stored = {**settings.STORAGES, "staticfiles": backend}
    collect("CompressedManifestStaticFilesStorage")
    (target / "later.css").write_bytes(b"")
    with override_settings(STORAGES=stored), pytest.raises(ValueError, match="Missing staticfiles"):
        staticfiles_storage.url("later.css")
    with override_settings(STORAGES=stored, WHITENOISE_MANIFEST_STRICT=False):
        assert staticfiles_storage.url("later.css").startswith("/static/later.")
