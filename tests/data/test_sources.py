"""Arrays, files, Datasets and names all give the same images, or say what is wrong with them."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from arrays import EXPECTED, IMAGES, LABELS, as_npy, as_npz
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchvision.datasets import FakeData

from jointembed.data import Source, open_source, splits


class Items(Dataset):
    def __init__(self, items: list) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> object:
        return self.items[i]


class Stream(IterableDataset):
    def __iter__(self) -> object:
        return iter([])


FORMS = {
    "array": lambda _: IMAGES,
    "reversed view": lambda _: IMAGES[::-1].copy()[::-1],
    "read-only array": lambda _: np.frombuffer(IMAGES.tobytes(), np.uint8).reshape(IMAGES.shape),
    "NCHW array": lambda _: IMAGES.transpose(0, 3, 1, 2),
    "floats": lambda _: IMAGES / 255,
    "float16": lambda _: (IMAGES / 255).astype(np.float16),
    "big-endian floats": lambda _: (IMAGES / 255).astype(">f4"),
    "tensor": lambda _: EXPECTED,
    "tensor with gradient": lambda _: (EXPECTED / 255).requires_grad_(),
    "npz x_train": lambda folder: as_npz(folder, x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:2], y_test=LABELS[:2]),
    "npz images": lambda folder: as_npz(folder, images=IMAGES, labels=LABELS),
    "npz x": lambda folder: as_npz(folder, x=IMAGES, y=LABELS),
    "npz of one": lambda folder: as_npz(folder, whatever=IMAGES),
    "npy": lambda folder: as_npy(folder, IMAGES),
    "npy by name": lambda folder: str(as_npy(folder, IMAGES)),
    "pair": lambda _: (IMAGES, LABELS),
    "PIL list": lambda _: [Image.fromarray(image) for image in IMAGES],
    "array list": lambda _: list(IMAGES),
    "tensor tuple": lambda _: tuple(EXPECTED),
    "PIL list and labels": lambda _: ([Image.fromarray(image) for image in IMAGES], LABELS.tolist()),
    "Dataset of PIL": lambda _: Items(
        [(Image.fromarray(image), int(y)) for image, y in zip(IMAGES, LABELS, strict=True)]
    ),
    "Dataset of images": lambda _: Items(list(EXPECTED / 255)),
    "TensorDataset": lambda _: TensorDataset(EXPECTED, torch.from_numpy(LABELS)),
    "Source": lambda _: open_source(IMAGES),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images_and_labels(tmp_path: Path, form: str) -> None:
    source = open_source(FORMS[form](tmp_path))
    assert isinstance(source, Source)
    assert (len(source), source.channels, source.image_size, source.in_memory) == (12, 3, (10, 9), True)
    if form == "float16":
        assert int((source.batch(range(12)).int() - EXPECTED.int()).abs().max()) <= 1
    else:
        assert torch.equal(source.batch(range(12)), EXPECTED)
    if source.labels is not None:
        assert source.labels.tolist() == LABELS.tolist()
        assert source.labels.dtype == torch.int64
    assert (source.labels is not None) == (
        form in ("pair", "npz x_train", "npz images", "npz x", "PIL list and labels", "Dataset of PIL", "TensorDataset")
    )
    assert torch.equal(pickle.loads(pickle.dumps(source)).batch([3, 1]), EXPECTED[[3, 1]])


def test_batches_and_subsets_follow_their_indices() -> None:
    source = open_source((IMAGES, LABELS))
    part = source.subset(torch.tensor([5, 3, -1])).subset(np.array([2, 0]))
    assert torch.equal(part.batch([0, 1]), EXPECTED[[11, 5]])
    assert part.labels.tolist() == LABELS[[11, 5]].tolist()
    assert source.batch([]).shape == (0, 3, 10, 9)
    with pytest.raises(IndexError, match="has 12 images"):
        source.batch([12])
    with pytest.raises(ValueError, match="indices"):
        source.batch([0.5])


def test_images_of_different_sizes_come_as_a_list() -> None:
    images = [Image.fromarray(IMAGES[0]), Image.fromarray(IMAGES[1][:5])]
    for data in (images, Items(images)):
        source = open_source(data)
        assert source.image_size is None
        first, second = source.batch([0, 1])
        assert torch.equal(first, EXPECTED[0])
        assert torch.equal(second, EXPECTED[1][:, :5])


def test_grey_pil_images_become_colour_only_beside_colour() -> None:
    grey, colour = Image.fromarray(IMAGES[0, ..., 0]), Image.fromarray(IMAGES[1])
    assert open_source([grey, grey]).channels == 1
    for data in ([grey, colour], Items([grey, colour])):
        source = open_source(data)
        assert source.channels == 3
        assert torch.equal(source.batch([0])[0], EXPECTED[0, :1].expand(3, -1, -1))
    assert open_source([grey, grey], channels=3).channels == 3


def test_a_dataset_too_large_for_memory_is_read_when_needed() -> None:
    data = FakeData(size=6, image_size=(3, 12, 11), num_classes=4)
    kept, streamed = open_source(data), open_source(data, cache_limit=100)
    assert (kept.in_memory, streamed.in_memory, streamed.image_size) == (True, False, None)
    assert torch.equal(torch.stack(streamed.batch(range(6))), kept.batch(range(6)))
    assert kept.labels.tolist() == [data[i][1] for i in range(6)]


@given(
    shape=st.tuples(*[st.integers(1, 40)] * 3),
    last=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(max_examples=200, deadline=None)
def test_a_layout_is_either_told_right_or_asked_for(shape: tuple[int, int, int], last: bool, seed: int) -> None:
    channels, height, width = shape
    expected = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (2, channels, height, width), np.uint8))
    given_array = expected.movedim(1, 3) if last else expected
    layout = "NHWC" if last else "NCHW"
    assert torch.equal(open_source(given_array, layout=layout).batch([0, 1]), expected)
    if channels in (1, 3) and min(height, width) > 4:  # every ordinary image
        assert torch.equal(open_source(given_array).batch([0, 1]), expected)
    else:
        try:
            found = open_source(given_array).batch([0, 1])
        except ValueError as error:
            assert "layout=" in str(error)  # noqa: PT017
        else:
            assert found.numel() == expected.numel()


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((5, 8, 9), 1),
        ((5, 28, 28, 1), 1),
        ((5, 1, 28, 28), 1),
        ((5, 2, 28, 30), 2),
        ((5, 12, 64, 64), 12),
        ((5, 64, 64, 12), 12),
        ((5, 64, 64, 100), 100),
        ((5, 7, 50, 60), 7),
        ((5, 50, 60, 7), 7),
        ((5, 1, 3, 3), 1),
        ((5, 1, 1, 1), 1),
    ],
)
def test_the_channel_axis_is_told_by_length_then_by_squareness(shape: tuple[int, ...], channels: int) -> None:
    assert open_source(np.zeros(shape, np.uint8)).channels == channels


@pytest.mark.parametrize(
    "shape", [(5, 3, 32, 3), (5, 3, 3, 3), (5, 32, 32, 32), (5, 3, 3, 32), (5, 9, 7, 9), (5, 4, 9, 3)]
)
def test_a_shape_that_does_not_tell_is_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cannot tell which axis"):
        open_source(np.zeros(shape, np.uint8))


def test_floats_are_rounded_not_cut() -> None:
    assert open_source(np.full((2, 2, 2), 0.999)).batch([0]).unique().tolist() == [255]
    assert open_source(torch.full((2, 2, 2), 0.5, dtype=torch.bfloat16)).batch([0]).unique().tolist() == [128]


def with_value(value: float) -> np.ndarray:
    images = np.zeros((3, 4, 4), np.float32)
    images[1, 2, 2] = value
    return images


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (with_value(np.nan), "data: expected .* found NaN"),
        (with_value(np.inf), "found infinite values"),
        (with_value(-0.1), "found values from -0.1 to 0"),
        (with_value(255), "found values from 0 to 255"),
        (torch.from_numpy(with_value(np.nan)), "found NaN"),
        (np.zeros((3, 4, 4), np.int64), "found dtype int64"),
        (np.zeros((3, 4, 4), np.complex64), "found dtype complex64"),
        (np.zeros((3, 4, 4), bool), "found dtype bool"),
        (np.array([None, {}]), "found dtype object"),
        (np.array(["a", "b"]), "found dtype <U1"),
        (torch.zeros(3, 4, 4, dtype=torch.int32), "found a .* tensor of torch.int32"),
        (torch.zeros(3, 4, 4).to_sparse(), "found a torch.sparse_coo tensor"),
        (np.zeros((3, 4), np.uint8), r"found shape \(3, 4\)"),
        (np.zeros((3, 4, 4, 3, 1), np.uint8), "found shape"),
        (np.zeros((), np.uint8), r"found shape \(\)"),
        (np.zeros((0, 4, 4), np.uint8), "no pixel"),
        (np.zeros((3, 0, 4), np.uint8), "no pixel"),
        (np.zeros((1, 4, 4), np.uint8), "expected at least 2 images, found 1"),
        ([], "expected images, found none"),
        ([1, 2, 3], r"data\[0\]: expected a PIL image, an array or a tensor, found int"),
        ([np.zeros((4, 4), np.uint8), np.zeros((3, 4, 4), np.uint8)], r"one number of channels, found \[1, 3\]"),
        (Items([]), "empty Items"),
        (Items(["x", "y"]), r"data\[0\]: expected a PIL image"),
        (Items([(), ()]), r"data\[0\]: .* empty tuple"),
        (DataLoader(Items([1])), "pass its .dataset"),
        (Stream(), "numbered items"),
        (None, "found NoneType"),
        (3.5, "found float"),
        ({"a": 1}, r"data\[0\]"),
    ],
)
def test_unusable_data_is_named(data: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_source(data)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (LABELS[:5], r"labels: expected one per image, shape \(12,\), found shape \(5,\)"),
        (None, None),
        (LABELS - 2, "labels: expected class numbers from 0"),
        (LABELS + 0.5, "expected whole numbers or strings, found dtype float64"),
        ([None] * 12, "found dtype object"),
        ([[1], [2, 3]], "labels: expected"),
        (np.full(12, np.nan), "found dtype float64"),
        (5, r"found shape \(\)"),
    ],
)
def test_unusable_labels_are_named(labels: object, message: str | None) -> None:
    if message is None:
        assert open_source(IMAGES, labels=labels).labels is None
        return
    with pytest.raises(ValueError, match=message):
        open_source(IMAGES, labels=labels)


def test_labels_may_be_strings_columns_or_partly_missing() -> None:
    source = open_source(IMAGES, labels=["b", "a"] * 6)
    assert (source.labels[:2].tolist(), source.class_names) == ([1, 0], ("a", "b"))
    assert open_source(IMAGES, labels=LABELS[:, None]).labels.tolist() == LABELS.tolist()
    assert open_source(IMAGES, labels=LABELS - 1).labels.tolist() == (LABELS - 1).tolist()
    other = open_source(source, labels=LABELS)
    assert (other.labels.tolist(), source.class_names) == (LABELS.tolist(), ("a", "b"))
    with pytest.raises(ValueError, match="given twice"):
        open_source((IMAGES, LABELS), labels=LABELS)


def test_digits_are_scikit_learns_in_two_disjoint_halves() -> None:
    from sklearn.datasets import load_digits

    train, test = open_source("digits"), open_source("digits", split="test")
    assert splits("digits") == ("train", "test")
    assert (train.channels, train.image_size, len(train) + len(test)) == (1, (8, 8), 1797)
    mine = torch.cat([train.batch(range(len(train))), test.batch(range(len(test)))]).flatten(1).numpy()
    labels = torch.cat([train.labels, test.labels]).numpy()
    theirs = np.round(load_digits().data * 255 / 16).astype(np.uint8)
    rows = lambda pixels, y: sorted(map(tuple, np.column_stack([pixels, y]).tolist()))  # noqa: E731
    assert rows(mine, labels) == rows(theirs, load_digits().target)
    shares = torch.bincount(test.labels) / torch.bincount(train.labels)
    assert float((shares - 0.25).abs().max()) < 0.01
    assert torch.equal(test.labels, open_source("digits", split="test").labels)


@pytest.mark.parametrize(
    ("name", "first"),
    [("cifar-1", "cifar10"), ("digit", "digits"), ("fashionmnst", "fashion-mnist"), ("zzz", "digits")],
)
def test_an_unknown_name_lists_the_known_ones_closest_first(name: str, first: str) -> None:
    with pytest.raises(ValueError, match=rf"one of {first}.* found '{name}'") as raised:
        open_source(name)
    assert "stl10" in str(raised.value)


@pytest.mark.parametrize("name", ["/no/such/folder", "a\0b", "x" * 5000, ""])
def test_a_missing_path_is_a_value_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="data:"):
        open_source(name)


@pytest.mark.parametrize("file", ["fashion-mnist.npz", "fashion_mnist.npz"])
def test_a_named_data_set_is_read_from_an_archive_in_root(tmp_path: Path, file: str) -> None:
    np.savez(tmp_path / file, x_train=IMAGES[..., 0], y_train=LABELS, x_test=IMAGES[:3, ..., 0], y_test=LABELS[:3])
    source = open_source("FashionMNIST", split="test", root=tmp_path)
    assert torch.equal(source.batch(range(3)), EXPECTED[:3, :1])
    assert source.labels.tolist() == [0, 1, 2]


def test_a_named_data_set_is_read_from_torchvisions_own_files(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (7, 28, 28), np.uint8)
    for stem, count in (("train", 7), ("t10k", 4)):
        sizes = b"".join(n.to_bytes(4, "big") for n in (count, 28, 28))
        (raw / f"{stem}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + sizes + images[:count].tobytes())
        (raw / f"{stem}-labels-idx1-ubyte").write_bytes(
            b"\0\0\x08\x01" + count.to_bytes(4, "big") + bytes(range(count))
        )
    source = open_source("mnist", root=tmp_path)
    assert np.array_equal(source.batch(range(7))[:, 0].numpy(), images)
    assert source.labels.tolist() == list(range(7))
    assert len(open_source("mnist", split="test", root=tmp_path)) == 4


def test_what_was_tried_is_said_when_a_data_set_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import urllib.request

    def closed(*_: object, **__: object) -> None:
        raise OSError("the network is closed")

    monkeypatch.setattr(urllib.request, "urlopen", closed)
    with pytest.raises(
        ValueError, match=r"'cifar10' could not be had. Tried .*cifar10\.npz .*download.*network is closed"
    ):
        open_source("cifar10", root=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": None}, "split:"),
        ({"split": "test"}, "split: expected one of train, found 'test'"),
        ({"short_side": 0}, "short_side:"),
        ({"channels": 2}, "channels:"),
        ({"white": 0}, "white:"),
        ({"layout": "CHWN"}, "layout:"),
    ],
)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_source(IMAGES, **arguments)
