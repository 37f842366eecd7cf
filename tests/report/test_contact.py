"""The sheet is decoded again: solid colours tell which image was drawn where."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from jointembed.report import contact_sheet
from jointembed.report.contact import FLAGGED

FRAME = tuple(bytes.fromhex(FLAGGED[1:]))


def colour(i: int) -> tuple[int, int, int]:
    return 20 + 5 * i, 200 - 4 * i, 150


def solid(count: int) -> torch.Tensor:
    """(N, 3, 6, 6), image i in colour i."""
    return torch.tensor([colour(i) for i in range(count)], dtype=torch.uint8)[:, :, None, None].expand(-1, 3, 6, 6)


def read(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB"))


def box(sheet: np.ndarray, wanted: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """Top, bottom, left, right of the solid rectangle in that colour, if it is there."""
    y, x = np.nonzero((sheet == wanted).all(-1))
    if not len(y):
        return None
    found = int(y.min()), int(y.max()) + 1, int(x.min()), int(x.max()) + 1
    assert (sheet[found[0] : found[1], found[2] : found[3]] == wanted).mean() > 0.95  # one picture, not several
    return found


def layout(sheet: np.ndarray, count: int) -> list[list[int]]:
    """The numbers of the images on the sheet, row by row."""
    boxes = {i: found for i in range(count) if (found := box(sheet, colour(i))) is not None}
    rows = sorted({found[0] for found in boxes.values()})
    return [sorted((i for i in boxes if boxes[i][0] == top), key=lambda i: boxes[i][2]) for top in rows]


def test_the_strangest_are_above_the_most_typical_below_each_in_order(tmp_path: Path) -> None:
    scores = torch.randperm(40, generator=torch.Generator().manual_seed(0)).float()
    contact_sheet(solid(40), scores, tmp_path / "sheet.png", each=10)
    ranked = np.argsort(scores.numpy())
    strangest, typical = ranked[::-1][:10].tolist(), ranked[:10].tolist()
    assert layout(read(tmp_path / "sheet.png"), 40) == [strangest[:8], strangest[8:], typical[:8], typical[8:]]


@pytest.mark.parametrize(("count", "rows"), [(1, [[0]]), (2, [[1], [0]]), (5, [[4, 3, 2], [0, 1]])])
def test_few_images_are_shown_once_each(count: int, rows: list[list[int]], tmp_path: Path) -> None:
    contact_sheet(solid(count), torch.arange(float(count)), tmp_path / "sheet.png")
    assert layout(read(tmp_path / "sheet.png"), count) == rows


def test_only_what_is_flagged_is_framed(tmp_path: Path) -> None:
    flagged = torch.tensor([False, False, False, False, True, True])
    contact_sheet(solid(6), torch.arange(6.0), tmp_path / "sheet.png", flagged=flagged)
    sheet = read(tmp_path / "sheet.png")
    for i in range(6):
        found = box(sheet, colour(i))
        assert found is not None
        top, bottom, left, right = found
        around = sheet[top - 3 : bottom + 3, left - 3 : right + 3]
        assert ((around == FRAME).all(-1).sum() > 2 * (bottom - top + right - left)) == bool(flagged[i])
    contact_sheet(solid(6), torch.arange(6.0), tmp_path / "plain.png")
    assert box(read(tmp_path / "plain.png"), FRAME) is None


@pytest.mark.parametrize(("levels", "shown"), [([77], 77), ([60, 80], 70), ([10, 20, 60, 70], 40), ([50] * 13, 50)])
def test_other_channels_are_shown_in_grey(levels: list[int], shown: int, tmp_path: Path) -> None:
    image = torch.tensor(levels, dtype=torch.uint8)[:, None, None].expand(-1, 8, 8)
    contact_sheet([image, image], torch.tensor([1.0, 2.0]), tmp_path / "sheet.png", each=1)
    middle = read(tmp_path / "sheet.png")[:, 40:90].reshape(-1, 3)  # through the pictures at the left
    assert ((middle == shown).all(-1)).mean() > 0.5


def test_images_of_different_sizes_keep_their_proportions(tmp_path: Path) -> None:
    sizes = [(10, 40), (40, 10), (300, 200), (7, 7)]
    images = [solid(4)[i, :, :1, :1].expand(3, *size) for i, size in enumerate(sizes)]
    contact_sheet(images, torch.arange(4.0), tmp_path / "sheet.png")
    sheet = read(tmp_path / "sheet.png")
    for i, (height, width) in enumerate(sizes):
        found = box(sheet, colour(i))
        assert found is not None
        assert (found[1] - found[0]) / (found[3] - found[2]) == pytest.approx(height / width, rel=0.08)
        assert max(found[1] - found[0], found[3] - found[2]) > 130


def test_any_file_name_can_stand_under_a_picture(tmp_path: Path) -> None:
    names = ["$\\frac{$.png", "line\nbreak\x00.png", "caf\udce9.png", "文字.png", "folder/" * 30 + "a.png", ""]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        contact_sheet(solid(6), torch.arange(6.0), tmp_path / "named.png", names)
    contact_sheet(solid(6), torch.arange(6.0), tmp_path / "plain.png")
    named, plain = read(tmp_path / "named.png"), read(tmp_path / "plain.png")
    assert layout(named, 6) == layout(plain, 6)
    assert named.shape[0] > plain.shape[0] and named.shape[1] == plain.shape[1]  # a line more under each row


def test_a_score_that_is_no_number_is_the_strangest(tmp_path: Path) -> None:
    contact_sheet(solid(4), torch.tensor([1.0, torch.nan, 3.0, torch.inf]), tmp_path / "sheet.png", each=2)
    assert layout(read(tmp_path / "sheet.png"), 4) == [[1, 3], [0, 2]]


def test_wrong_arguments_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    scores = torch.arange(6.0)
    with pytest.raises(ValueError, match="path: expected a file name ending in .png, got .*sheet.jpg"):
        contact_sheet(solid(6), scores, tmp_path / "sheet.jpg")
    for each in (0, 501):
        with pytest.raises(ValueError, match=f"each: expected 1 to 500, got {each}"):
            contact_sheet(solid(6), scores, tmp_path / "sheet.png", each=each)
    with pytest.raises(ValueError, match="scores: expected one for each of 6 images, got 5"):
        contact_sheet(solid(6), scores[:5], tmp_path / "sheet.png")
    with pytest.raises(ValueError, match="flagged: expected one for each of 6 images, got 5"):
        contact_sheet(solid(6), scores, tmp_path / "sheet.png", flagged=scores[:5] > 2)
    with pytest.raises(ValueError, match="names: expected one for each of 6 images, got 1"):
        contact_sheet(solid(6), scores, tmp_path / "sheet.png", ["a"])
    assert not list(tmp_path.iterdir())
