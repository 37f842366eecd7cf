"""Arrays, labels and array files of any kind: each opens, or a ValueError names what is wrong with it."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpus import flipped, truncated
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from jointembed.data import open_source

KINDS = ["u1", "f2", "f4", "f8", ">f4", "i4", "u2", "?", "c8", "S3", "U2", "M8[s]"]
shapes = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6)
quick = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def opens_or_says_why(data: Any, *words: str, **options: Any) -> None:
    try:
        source = open_source(data, **options)
        batch = source.batch(range(len(source)))
    except ValueError as error:
        assert any(word in str(error) for word in ("data", "labels", "layout", *words)), error  # noqa: PT017
        return
    assert all(image.dtype == torch.uint8 and image.ndim == 3 and image.numel() for image in batch)
    if source.labels is not None:
        assert (
            source.labels.dtype == torch.int64 and source.labels.shape == (len(source),) and source.labels.min() >= -1
        )


@quick
@given(st.sampled_from(KINDS).flatmap(lambda kind: hnp.arrays(kind, shapes)))
@example(np.zeros((3, 4, 4), "V4"))
@example(np.zeros((3, 4, 4), [("a", "u1")]))
@example(np.full((3, 4, 4), None))
def test_arrays_of_any_kind(array: np.ndarray) -> None:
    opens_or_says_why(array)


@quick
@given(
    hnp.arrays("f4", (3, 4, 4), elements=st.floats(0, 1, width=32)),
    st.sampled_from([np.nan, np.inf, -np.inf, -0.001, 1.001, 255.0, 1e30]),
    st.integers(0, 47),
)
def test_one_value_out_of_range_is_found(array: np.ndarray, value: float, place: int) -> None:
    assert open_source(array).batch([0]).dtype == torch.uint8
    array.flat[place] = value
    for data in (array, torch.from_numpy(array), list(array)):
        with pytest.raises(ValueError, match=r"data.*found (NaN|infinite values|values from)"):
            open_source(data)


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=1), st.integers(), max_size=1),
)  # fmt: skip


@quick
@given(
    st.lists(anything, min_size=3, max_size=3)
    | anything
    | hnp.arrays(st.sampled_from(["f8", "i8", "u8", "O", "U3"]), (3,))
)
@example([None, None, None])
@example([-1, -2, 0])
@example([10**12, 0, 1])
@example([1e300, 0.0, 1.0])
@example(["a", None, "b"])
def test_labels_of_any_kind(labels: Any) -> None:
    opens_or_says_why(np.zeros((3, 4, 4), np.uint8), labels=labels)


images = st.one_of(
    anything,
    hnp.arrays(st.sampled_from(["u1", "f4"]), shapes, elements=st.just(0)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)).map(lambda size: Image.new("RGB", size)),
    st.sampled_from(["1", "L", "P", "I", "F", "CMYK", "LA", "I;16"]).map(lambda mode: Image.new(mode, (3, 4))),
)


@quick
@given(st.lists(images, max_size=4))
def test_lists_of_anything(items: list) -> None:
    opens_or_says_why(items)


@quick
@given(anything)
def test_things_that_are_no_data(thing: Any) -> None:
    opens_or_says_why(thing)


def array_file(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays) if arrays else np.save(file, np.zeros((4, 5, 5), np.uint8))
    return file.getvalue()


@pytest.mark.parametrize("name", ["x.npz", "x.npy"])
def test_spoiled_array_files(tmp_path: Path, name: str) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 5), np.uint8)
    content = array_file(x=images, y=np.arange(4)) if name == "x.npz" else array_file()
    spoiled = [*truncated(content, 25), *flipped(content, 75)]
    for part in spoiled:
        (tmp_path / name).write_bytes(part)
        opens_or_says_why(tmp_path / name, name, "split")


@pytest.mark.parametrize("shape", [(10**6, 10**6), (10**9, 10**9, 10**9), (-1, 5, 5)])
def test_an_array_file_may_claim_any_size(tmp_path: Path, shape: tuple[int, ...]) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    (tmp_path / "x.npy").write_bytes(file.getvalue())
    with pytest.raises(ValueError, match=r"x\.npy"):
        open_source(tmp_path / "x.npy")


@pytest.mark.soak
@settings(max_examples=5000, deadline=None)
@given(st.sampled_from(KINDS).flatmap(lambda kind: hnp.arrays(kind, shapes)), st.lists(anything, max_size=6))
def test_many_more_arrays_and_labels(array: np.ndarray, labels: list) -> None:
    opens_or_says_why(array, labels=labels)
    opens_or_says_why([array, *labels])
