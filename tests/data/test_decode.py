"""Image files of every kind, against Pillow or pixels known beforehand."""

from pathlib import Path

import numpy as np
import pytest
from pictures import COLOUR, GREY, only, save
from PIL import Image, ImageOps

from jointembed.data import open_source


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif", "a.tiff", "a.PNG", "a.ppm"])
def test_lossless_formats_give_the_pixels_that_were_saved(tmp_path: Path, name: str) -> None:
    save(tmp_path, name, COLOUR)
    assert np.array_equal(only(tmp_path), COLOUR.transpose(2, 0, 1))


@pytest.mark.parametrize(("name", "options"), [("a.jpg", {"quality": 90}), ("a.webp", {"quality": 80}), ("a.gif", {})])
def test_lossy_formats_give_what_pillow_decodes(tmp_path: Path, name: str, options: dict) -> None:
    path = save(tmp_path, name, COLOUR, **options)
    assert np.array_equal(only(tmp_path), np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1))


def test_lossless_webp_and_a_wrong_ending_are_read_by_content(tmp_path: Path) -> None:
    save(tmp_path, "really_webp.jpg", COLOUR, format="WEBP", lossless=True)
    assert np.array_equal(only(tmp_path), COLOUR.transpose(2, 0, 1))


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.bmp", "a.gif"])
def test_grey_files_have_one_channel(tmp_path: Path, name: str) -> None:
    save(tmp_path, name, GREY)
    assert np.array_equal(only(tmp_path), GREY[None])
    assert np.array_equal(only(tmp_path, channels=3), np.stack([GREY] * 3))


def test_grey_and_coloured_files_together_have_three_channels(tmp_path: Path) -> None:
    save(tmp_path, "a.png", GREY)
    save(tmp_path, "b.png", COLOUR)
    source = open_source(tmp_path)
    assert source.channels == 3
    assert source.image_size == (20, 30)
    expected = np.stack([np.stack([GREY] * 3), COLOUR.transpose(2, 0, 1)])
    assert np.array_equal(source.batch([0, 1]).numpy(), expected)


def test_black_and_white_files_become_0_and_255(tmp_path: Path) -> None:
    save(tmp_path, "a.png", Image.fromarray(GREY > 127))
    assert np.array_equal(only(tmp_path), (GREY > 127)[None] * np.uint8(255))


def test_a_palette_is_looked_up(tmp_path: Path) -> None:
    image = Image.new("P", (30, 20))
    image.putdata((GREY % 4).ravel().tolist())
    palette = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 8, 7]], np.uint8)
    image.putpalette(palette.ravel().tolist())
    save(tmp_path, "a.png", image)
    assert np.array_equal(only(tmp_path), palette[GREY % 4].transpose(2, 0, 1))


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.webp"])
def test_alpha_is_laid_on_white(tmp_path: Path, name: str) -> None:
    alpha = np.random.default_rng(2).integers(0, 256, (20, 30, 1))
    save(tmp_path, name, np.concatenate([COLOUR, alpha.astype(np.uint8)], 2), lossless=True, exact=True)
    expected = (COLOUR * (alpha / 255) + 255 * (1 - alpha / 255)).transpose(2, 0, 1)
    assert np.abs(only(tmp_path) - expected).max() <= 1


def test_grey_with_alpha_stays_grey_and_a_transparent_colour_becomes_white(tmp_path: Path) -> None:
    save(tmp_path / "la", "a.png", np.stack([GREY, np.full_like(GREY, 0)], 2))
    assert np.array_equal(only(tmp_path / "la"), np.full((1, 20, 30), 255, np.uint8))
    save(tmp_path / "key", "a.png", GREY // 128, transparency=1)
    assert np.array_equal(only(tmp_path / "key"), np.where(GREY // 128 == 1, 255, 0)[None])


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_sixteen_bits_are_scaled_by_their_range(tmp_path: Path, name: str) -> None:
    deep = np.random.default_rng(3).integers(0, 65536, (20, 30)).astype(np.uint16)
    save(tmp_path, name, deep)
    assert np.array_equal(only(tmp_path), np.round(deep / 257.0)[None].astype(np.uint8))
    assert np.array_equal(only(tmp_path, white=4095), np.clip(np.round(deep / 4095 * 255), 0, 255)[None])


def test_float_and_32_bit_tiffs_are_scaled_by_what_they_hold(tmp_path: Path) -> None:
    unit = np.random.default_rng(4).random((20, 30), np.float32)
    save(tmp_path / "unit", "a.tif", unit)
    assert np.abs(only(tmp_path / "unit")[0] - unit * 255.0).max() <= 0.51
    save(tmp_path / "wide", "a.tif", unit * 2000 - 500)
    span = (unit - unit.min()) / (unit.max() - unit.min()) * 255.0
    assert np.abs(only(tmp_path / "wide")[0] - span).max() <= 0.51
    save(tmp_path / "int", "a.tif", (unit * 2e6).astype(np.int32))
    assert np.abs(only(tmp_path / "int")[0] - span).max() <= 0.52


def test_cmyk_is_converted_as_pillow_does(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.tif"):
        path = save(tmp_path / name, name, Image.fromarray(COLOUR).convert("CMYK"))
        assert np.array_equal(only(tmp_path / name), np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1))


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(tmp_path: Path, name: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path, name, COLOUR, exif=exif)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert expected.shape[:2] == ((30, 20) if orientation >= 5 else (20, 30))
    assert np.array_equal(only(tmp_path), expected.transpose(2, 0, 1))


def test_the_first_frame_of_an_animation_counts(tmp_path: Path) -> None:
    frames = [Image.fromarray(GREY), Image.fromarray(255 - GREY)]
    for name in ("a.gif", "b.webp"):
        options = {"lossless": True} if name.endswith("webp") else {}
        save(tmp_path / name, name, frames[0], save_all=True, append_images=frames[1:], **options)
        assert np.array_equal(only(tmp_path / name, channels=1)[0], GREY)


def test_the_short_side_is_capped_and_smaller_images_stay(tmp_path: Path) -> None:
    small, large = COLOUR, np.asarray(Image.fromarray(COLOUR).resize((300, 150)))
    save(tmp_path, "a.png", small)
    path = save(tmp_path, "b.png", large)
    images = open_source(tmp_path, short_side=50).batch([0, 1])
    assert images[0].shape == (3, 20, 30)
    expected = np.asarray(Image.open(path).resize((100, 50), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    assert np.array_equal(images[1].numpy(), expected)


def test_a_large_jpeg_read_at_reduced_size_looks_like_one_read_whole(tmp_path: Path) -> None:
    y, x = np.mgrid[:1200, :1600] / 1600
    smooth = (127 + 120 * np.stack([np.sin(20 * x), np.cos(15 * y), np.sin(9 * (x + y))], 2)).astype(np.uint8)
    path = save(tmp_path, "a.jpg", smooth, quality=95)
    whole = np.asarray(Image.open(path).resize((133, 100), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    assert np.abs(only(tmp_path, short_side=100).astype(int) - whole).mean() < 1
