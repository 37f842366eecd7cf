"""Some eight hundred image files, most of them spoiled: each is read, or refused by its name."""

import os
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from corpus import claiming, flipped, pictures, truncated
from PIL import Image

from jointembed.data import Views, open_source

GOOD = pictures()


def read(folder: Path, name: str, content: bytes) -> torch.Tensor | str:
    """The pixels, or why there are none."""
    path = folder / name
    path.write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = open_source(folder, minimum=1, cache=False)
        (pixels,) = source.batch([0])
    except (ValueError, OSError) as error:
        assert name in str(error), error  # noqa: PT017
        return str(error)
    finally:
        path.unlink()
    assert pixels.dtype == torch.uint8 and pixels.ndim == 3 and pixels.numel() > 0
    return pixels


def try_all(folder: Path, name: str, contents: Iterable[bytes]) -> list[torch.Tensor | str]:
    found = [read(folder, name, content) for content in contents]
    assert os.listdir(folder) == []
    return found


@pytest.mark.parametrize("name", GOOD)
def test_spoiled_pictures_are_read_or_refused(tmp_path: Path, name: str) -> None:
    whole = read(tmp_path, name, GOOD[name])
    assert isinstance(whole, torch.Tensor) and whole.shape[1:] == (23, 31)
    assert isinstance(read(tmp_path, name, b""), str)
    cut = try_all(tmp_path, name, truncated(GOOD[name], 10))
    assert isinstance(cut[1], str)  # a tenth of a picture is none
    assert len(try_all(tmp_path, name, flipped(GOOD[name], 20))) == 20


@pytest.mark.parametrize("name", GOOD)
def test_content_counts_and_not_the_ending(tmp_path: Path, name: str) -> None:
    whole = read(tmp_path, name, GOOD[name])
    for ending in (".png", ".jpg", ".webp", ".TIFF", ".bmp", ".gif"):
        assert torch.equal(read(tmp_path, f"x{ending}", GOOD[name]), whole)


@pytest.mark.parametrize("size", [(60_000, 60_000), (2**31 - 1, 1), (1, 2**31 - 1), (100_000, 1_000)])
def test_pixel_bombs_are_refused_by_their_size(tmp_path: Path, size: tuple[int, int]) -> None:
    for name, content in claiming(*size).items():
        assert isinstance(read(tmp_path, name, content), str)


def test_pictures_without_pixels_are_refused(tmp_path: Path) -> None:
    for size in ((0, 0), (0, 5), (5, 0)):
        for name, content in claiming(*size).items():
            assert isinstance(read(tmp_path, name, content), str)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "BMP", "GIF", "PPM", "WEBP"])
@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1)])
def test_the_narrowest_pictures_have_views(tmp_path: Path, form: str, size: tuple[int, int]) -> None:
    Image.fromarray(np.full(size[::-1], 7, np.uint8)).save(tmp_path / f"x.{form.lower()[:4]}", form)
    source = open_source(tmp_path, minimum=1, cache=False)
    batch = source.batch([0])
    assert Views(8).single(batch).shape == (1, source.channels, 8, 8)
    assert all(view.isfinite().all() for view in Views(8, num_local=1)(batch, 0))


NAMES = [
    "a\nb",
    "it's",
    'a "b"',
    "😀",
    "é" * 125,
    "=1+1",
    "[red]",
    "\x1b[2J",
    "%s %d {}",
    "\udcff",
    "..",
    "CON",
    "a" * 251,
    "-rf",
    "$HOME",
]


def test_any_name_of_a_file_will_do(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.png").write_bytes(GOOD["grey.png"])
    for cache in (False, tmp_path.parent / "cache"):
        source = open_source(tmp_path, cache=cache)
        assert sorted(source.names) == sorted(f"{name}.png" for name in NAMES if not name.startswith("."))
        assert source.batch(range(len(source))).unique(dim=0).shape == (1, 1, 23, 31)


def test_what_is_no_file_is_passed_over_and_named(tmp_path: Path) -> None:
    for i in range(100):
        (tmp_path / f"{i:03}.png").write_bytes(GOOD["grey.png"])
    os.symlink("loop-a.png", tmp_path / "loop-b.png")
    os.symlink("loop-b.png", tmp_path / "loop-a.png")
    os.symlink("nothing", tmp_path / "dangling.png")
    os.symlink(tmp_path, tmp_path / "again")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    bad = {"loop-a.png", "loop-b.png", "dangling.png", "pipe.png"}
    if os.getuid():  # root reads everything
        (tmp_path / "secret.png").touch(mode=0)
        bad.add("secret.png")
    source = open_source(tmp_path, cache=False)
    assert len(source) == 100
    assert {name for name, _ in source.skipped} == bad


@pytest.mark.soak
@pytest.mark.parametrize("name", GOOD)
def test_many_more_spoiled_pictures(tmp_path: Path, name: str) -> None:
    try_all(tmp_path, name, truncated(GOOD[name], min(len(GOOD[name]), 300)))
    try_all(tmp_path, name, flipped(GOOD[name], 1000))
