"""NumPy files: splits, what is in them, and what must not be opened."""

import io
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arrays import EXPECTED, IMAGES, LABELS, as_npy, as_npz

from jointembed import _limits
from jointembed.data import open_source, splits


def test_npz_splits_are_those_it_holds(tmp_path: Path) -> None:
    path = as_npz(tmp_path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:4], y_test=LABELS[:4])
    assert splits(path) == ("train", "test")
    assert torch.equal(open_source(path, split="test").batch(range(4)), EXPECTED[:4])
    with pytest.raises(ValueError, match="split: expected one of train, test, found 'val'"):
        open_source(path, split="val")
    assert splits(IMAGES) == splits(as_npy(tmp_path, IMAGES)) == ("train",)


class Trap:
    """Unpickling this would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "raw.npz", "raw.npy"])
def test_pickles_in_array_files_are_never_opened(tmp_path: Path, name: str) -> None:
    sprung = tmp_path / "sprung"
    trap = np.array([Trap(sprung), Trap(sprung)], object)
    if name.startswith("raw"):
        (tmp_path / name).write_bytes(pickle.dumps(Trap(sprung)))
    elif name.endswith("npz"):
        np.savez(tmp_path / name, x=trap)
    else:
        np.save(tmp_path / name, trap, allow_pickle=True)
    with pytest.raises(ValueError, match=name):
        open_source(tmp_path / name)
    assert not sprung.exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"\x93NUMPY\x01\x00", b"text"])
@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.txt"])
def test_files_that_hold_no_arrays_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        open_source(tmp_path / name)


def test_npz_without_a_known_array_lists_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"found \['first', 'second'\]"):
        open_source(as_npz(tmp_path, first=IMAGES, second=IMAGES))


def test_a_damaged_npz_is_an_error(tmp_path: Path) -> None:
    path = as_npz(tmp_path, x=IMAGES)
    content = bytearray(path.read_bytes())
    content[200:300] = bytes(100)
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"data\.npz"):
        open_source(path)


def claiming(shape: tuple[int, ...], content: bytes) -> bytes:
    """An .npy that says to have this shape."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue() + content


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The members of archives that anybody unpacks."""
    names = []
    real = zipfile.ZipFile.open

    def open_member(self: zipfile.ZipFile, member: zipfile.ZipInfo, *args: Any, **kwargs: Any) -> Any:
        if args != ("w",):
            names.append(getattr(member, "filename", member))
        return real(self, member, *args, **kwargs)

    monkeypatch.setattr(zipfile.ZipFile, "open", open_member)
    return names


def pack(path: Path, method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("key", ["x", "y"])
def test_a_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[str], method: int, key: str
) -> None:
    monkeypatch.setattr(_limits, "SPARE", 2**20)
    sizes = {"x": 2**22 if key == "x" else 12, "y": 2**22 if key == "y" else 12}
    members = {name: claiming((size, 1, 1), bytes(size)) for name, size in sizes.items()}
    path = pack(tmp_path / "x.npz", method, **members)
    assert path.stat().st_size < 2**14
    opened.clear()
    with pytest.raises(ValueError, match=rf"x\.npz: .*at most 1 MB, got {key}\.npy of 4 MB"):
        open_source(path)
    assert f"{key}.npy" not in opened


def test_a_large_array_that_does_not_shrink_to_nothing_is_no_bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_limits, "SPARE", 2**10)
    path = as_npz(tmp_path, images=IMAGES)
    assert torch.equal(open_source(path).batch(range(12)), EXPECTED)


@pytest.mark.parametrize("shape", [(10**6, 10**6, 10**6), (13, 10, 9), (11, 10, 9), (-1, 10, 9), (2**63, 2**63)])
def test_an_array_that_lies_about_its_shape_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = pack(tmp_path / "x.npz", images=claiming(shape, IMAGES[..., 0].tobytes()))
    with pytest.raises(ValueError, match=rf"x\.npz.*images\.npy to hold uint8 of shape .*{shape[0]}.*got 1,080 bytes"):
        open_source(path)
    (tmp_path / "x.npy").write_bytes(claiming(shape, b"12345"))
    with pytest.raises(ValueError, match=r"x\.npy"):
        open_source(tmp_path / "x.npy")


def test_no_more_is_unpacked_than_the_directory_says(tmp_path: Path) -> None:
    """The stream goes on for a megabyte; both sizes that a reader can see say twelve pixels."""
    content = claiming((12, 1, 1), bytes(2**20))
    said = len(content) - 2**20 + 12
    path = pack(tmp_path / "x.npz", images=content)
    whole = path.read_bytes()
    changed = whole.replace(len(content).to_bytes(4, "little"), said.to_bytes(4, "little"))
    assert changed != whole
    path.write_bytes(changed)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"x\.npz: cannot read its arrays"):  # the checksum is that of all
        open_source(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**19


def test_of_two_members_with_one_name_the_one_that_is_read_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_limits, "SPARE", 2**20)
    path = pack(tmp_path / "x.npz", images=claiming((12, 2, 2), bytes(48)))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images", claiming((2**22, 1, 1), bytes(2**22)))
    with pytest.raises(ValueError, match=r"x\.npz: .*at most 1 MB"):
        open_source(path)
