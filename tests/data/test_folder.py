"""Folders of images: labels, splits, the cache, and files that cannot be read."""

import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import COLOUR, GREY, save

from jointembed.data import cache, open_source, splits


def photos(folder: Path, count: int = 6) -> list[np.ndarray]:
    """PNGs of different sizes, some above the cap of 64 that the tests use."""
    generator = np.random.default_rng(1)
    images = [generator.integers(0, 256, (40 + 20 * i, 70, 3), np.uint8) for i in range(count)]
    for i, image in enumerate(images):
        save(folder, f"{i:02}.png", image)
    return images


def same(a: object, b: object) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))  # type: ignore[call-overload]


def test_class_folders_give_labels_and_nested_names(tmp_path: Path) -> None:
    for name in ("cat/1.png", "cat/deep/er/2.png", "dog/3.png"):
        save(tmp_path, name, COLOUR)
    source = open_source(tmp_path)
    assert list(source.names) == ["cat/1.png", "cat/deep/er/2.png", "dog/3.png"]
    assert source.class_names == ("cat", "dog")
    assert source.labels.tolist() == [0, 0, 1]
    part = source.subset([2, 0])
    assert (part.labels.tolist(), list(part.names)) == ([1, 0], ["dog/3.png", "cat/1.png"])


def test_one_folder_gives_no_labels_and_images_beside_class_folders_have_none(tmp_path: Path) -> None:
    save(tmp_path, "only/1.png", COLOUR)
    save(tmp_path, "only/2.png", COLOUR)
    assert open_source(tmp_path).labels is None
    save(tmp_path, "other/1.png", COLOUR)
    save(tmp_path, "loose.png", COLOUR)
    assert open_source(tmp_path).labels.tolist() == [-1, 0, 0, 1]


def test_train_and_test_folders_are_splits_whose_class_numbers_agree(tmp_path: Path) -> None:
    for name in ("train/good/1.png", "train/good/2.png", "test/bad/1.png", "test/good/1.png"):
        save(tmp_path, name, COLOUR)
    assert splits(tmp_path) == ("train", "test")
    train, test = open_source(tmp_path), open_source(tmp_path, split="test")
    assert list(test.names) == ["test/bad/1.png", "test/good/1.png"]
    assert train.class_names == test.class_names == ("bad", "good")
    assert (train.labels.tolist(), test.labels.tolist()) == ([1, 1], [0, 1])
    with pytest.raises(ValueError, match="split: expected one of train, test, found 'extra'"):
        open_source(tmp_path, split="extra")


def test_val_stands_for_test_and_a_class_called_train_is_a_class(tmp_path: Path) -> None:
    for name in ("a/train/1.png", "a/val/1.png", "b/train/1.png", "b/bus/1.png"):
        save(tmp_path, name, COLOUR)
    assert splits(tmp_path / "a") == ("train", "test", "val")
    assert len(open_source(tmp_path / "a", split="test", minimum=1)) == 1
    assert splits(tmp_path / "b") == ("train",)
    assert open_source(tmp_path / "b").class_names == ("bus", "train")


def test_a_second_opening_decodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = photos(tmp_path)
    first = open_source(tmp_path, short_side=64)
    monkeypatch.setattr(cache, "decode", None)
    monkeypatch.setattr(cache, "read_header", None)
    second = open_source(tmp_path, short_side=64)
    assert second.in_memory
    assert same(first.batch(range(6)), second.batch(range(6)))
    assert np.array_equal(second.batch([0])[0].numpy(), images[0].transpose(2, 0, 1))


@pytest.mark.parametrize(
    "change", ["touched", "added", "removed", "renamed", "settings", "damaged index", "cut pixels"]
)
def test_a_change_makes_the_cache_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    folder, where = tmp_path / "images", tmp_path / "cache"
    photos(folder)
    open_source(folder, cache=where)
    (index,) = where.rglob("index.json")
    (pixels,) = where.rglob("pixels-*.bin")
    if change == "touched":
        os.utime(folder / "00.png", ns=(1, 1))
    elif change == "added":
        save(folder, "99.png", COLOUR)
    elif change == "removed":
        (folder / "00.png").unlink()
    elif change == "renamed":
        (folder / "00.png").rename(folder / "000.png")
    elif change == "damaged index":
        index.write_text('{"format": 1, "sizes": null}')
    elif change == "cut pixels":
        os.truncate(pixels, 100)
    calls = []
    real = cache.decode
    monkeypatch.setattr(cache, "decode", lambda *given: calls.append(given) or real(*given))
    source = open_source(folder, cache=where, short_side=48 if change == "settings" else 256)
    assert len(calls) == len(source) == len(list(folder.iterdir()))
    assert same(
        source.batch(range(len(source))),
        open_source(folder, cache=False, short_side=48 if change == "settings" else 256).batch(range(len(source))),
    )
    if change in ("touched", "added", "removed", "renamed"):
        assert len(list(where.rglob("pixels-*.bin"))) == 1


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_streaming_equals_the_cache_bit_for_bit(tmp_path: Path, suffix: str) -> None:
    generator = np.random.default_rng(5)
    for i in range(5):
        save(tmp_path, f"{i}.{suffix}", generator.integers(0, 256, (90 + 50 * i, 200, 3), np.uint8))
    mapped, limited = open_source(tmp_path, short_side=64), open_source(tmp_path, short_side=64, cache_limit=1000)
    unkept = open_source(tmp_path, short_side=64, cache=False)
    assert (mapped.in_memory, limited.in_memory, unkept.in_memory) == (True, False, False)
    assert same(mapped.batch(range(5)), limited.batch(range(5)))
    assert same(mapped.batch(range(5)), unkept.batch(range(5)))


def test_sources_survive_pickling_without_their_pixels(tmp_path: Path) -> None:
    for i in range(40):
        save(tmp_path, f"{i}.png", COLOUR)
    for source in (open_source(tmp_path), open_source(tmp_path, cache_limit=0)):
        data = pickle.dumps(source.subset(range(10, 40)))
        assert len(data) < 40 * COLOUR.nbytes / 4
        assert torch.equal(pickle.loads(data).batch([1, 2]), source.batch([11, 12]))


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    photos(tmp_path / "images")
    (tmp_path / "file").touch()
    source = open_source(tmp_path / "images", cache=tmp_path / "file")
    assert not source.in_memory
    assert "no cache in" in caplog.text


def test_a_cache_is_not_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(tmp_path / "images")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "decode", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_source(tmp_path / "images", cache=tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == ["lock"]


def spoil(folder: Path, good: int) -> list[str]:
    """Beside `good` images, one of each kind that cannot be read."""
    for i in range(good):
        save(folder, f"good{i:03}.png", GREY[:8, :8])
    whole = save(folder, "cut.jpg", COLOUR).read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.png").touch()
    (folder / "text\n'quoted' 🙂.png").write_text("not an image")
    os.symlink(folder / "nowhere", folder / "broken link.png")
    os.mkfifo(folder / "pipe.png")
    return ["broken link.png", "cut.jpg", "empty.png", "pipe.png", "text\n'quoted' 🙂.png"]


@pytest.mark.parametrize("limit", [8e9, 0])
def test_unreadable_files_are_skipped_listed_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: float
) -> None:
    bad = spoil(tmp_path, good=96)
    with caplog.at_level(logging.WARNING, "jointembed"):
        source = open_source(tmp_path, cache_limit=limit)
    assert len(source) == 96
    assert sorted(name for name, _ in source.skipped) == bad
    assert all(repr(name) in caplog.text for name in bad)
    assert "skipped 5 of 101" in caplog.text
    assert source.batch(range(96)).unique(dim=0).shape == (1, source.channels, 8, 8)


def test_more_than_five_in_a_hundred_unreadable_is_an_error(tmp_path: Path) -> None:
    spoil(tmp_path, good=90)
    with pytest.raises(ValueError, match=r"at most 5% unreadable images .* found 5 of 95: .*"):
        open_source(tmp_path)


def test_a_pixel_bomb_is_refused_by_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(30):
        save(tmp_path, f"{i:02}.png", GREY)
    header = (60_000).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    import zlib

    crc = zlib.crc32(b"IHDR" + header).to_bytes(4, "big")
    (tmp_path / "bomb.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + b"IHDR" + header + crc + b"\0\0\0\0IDAT\0\0\0\0"
    )
    ((name, reason),) = open_source(tmp_path).skipped
    assert name == "bomb.png"
    assert "pixels" in reason


def test_a_file_that_goes_while_streaming_is_replaced_by_grey(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for i in range(3):
        save(tmp_path, f"{i}.png", COLOUR)
    source = open_source(tmp_path, cache=False)
    (tmp_path / "1.png").unlink()
    images = source.batch([0, 1, 2])
    assert torch.equal(images[0], images[2])
    assert bool((images[1] == 128).all())
    assert "'1.png' can no longer be read" in caplog.text


def test_loops_of_links_end_and_hidden_files_are_passed_over(tmp_path: Path) -> None:
    for name in ("a/1.png", "b/2.png", ".hidden/3.png", "a/._1.png", "__MACOSX/4.png"):
        save(tmp_path, name, COLOUR)
    os.symlink(tmp_path, tmp_path / "a" / "loop")
    os.symlink("self", tmp_path / "self")
    assert list(open_source(tmp_path).names) == ["a/1.png", "b/2.png"]


def test_extreme_shapes_are_images_too(tmp_path: Path) -> None:
    save(tmp_path, "a.png", GREY[:1, :1])
    save(tmp_path, "b.png", np.zeros((1, 10_000), np.uint8))
    save(tmp_path, "é" * 120 + ".png", np.zeros((300, 3000), np.uint8))
    assert [tuple(image.shape) for image in open_source(tmp_path).batch(range(3))] == [
        (1, 1, 1),
        (1, 1, 10_000),
        (1, 256, 2560),
    ]


def test_folders_without_images_say_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected images \(.png .jpg .* found nothing"):
        open_source(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"found 1 other files, such as 'notes.txt'"):
        open_source(tmp_path)
    save(tmp_path, "one.png", COLOUR)
    with pytest.raises(ValueError, match="expected at least 2 images, found 1"):
        open_source(tmp_path)
