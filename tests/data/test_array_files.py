"""NumPy files: splits, what is in them, and what must not be opened."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from arrays import EXPECTED, IMAGES, LABELS, as_npy, as_npz

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
