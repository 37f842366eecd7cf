"""Links that lie where something is written: replaced or refused, never followed."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import TINY, tiny_network

import jointembed as je
from jointembed._files import atomic, leftovers
from jointembed.data import open_source
from jointembed.model import Config
from jointembed.scoring import write_table


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    path = tmp_path / "treasure"
    path.write_text("years of work")
    return path


def test_files_replace_a_link_that_lies_in_their_place(tmp_path: Path, treasure: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "scores.csv"):
        os.symlink(treasure, folder / name)
    Config("lejepa", {}, "resnet10-tiny", 1, 8, [0.3], [0.4]).build().save(folder)
    write_table(folder / "scores.csv", {"name": ["a"]})
    assert treasure.read_text() == "years of work"
    assert not any(path.is_symlink() for path in folder.iterdir())


def test_a_temporary_file_is_new_and_private(tmp_path: Path, treasure: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    names = iter(["guessed", "unguessed"])
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: names)
    os.symlink(treasure, tmp_path / ".x.txt.guessed.txt")
    with atomic(tmp_path / "x.txt") as path:
        assert path.name == ".x.txt.unguessed.txt"
        assert path.stat().st_mode & 0o077 == 0
        path.write_text("new")
    assert treasure.read_text() == "years of work"


def test_training_follows_no_link_out_of_its_folder(tmp_path: Path, treasure: Path) -> None:
    def train(out: Path, resume: object = False) -> None:
        options = {"epochs": 1, "batch_size": 512, "progress": False, **TINY}
        torch.manual_seed(0)
        je.train("digits", backbone=tiny_network(), out=out, resume=resume, **options)

    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "link")
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling")
    for name in ("link", "dangling"):
        with pytest.raises(ValueError, match=rf"^out: expected a folder that no link leads out of, .*{name} is a link"):
            train(tmp_path / name)
    train(tmp_path / "run")
    (tmp_path / "run" / "log.txt").unlink()
    os.symlink(treasure, tmp_path / "run" / "log.txt")
    with pytest.raises(ValueError, match=r"^out: .*log\.txt is a link"):
        train(tmp_path / "run", "auto")
    assert treasure.read_text() == "years of work"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_foreign_folder_is_never_a_run(tmp_path: Path, treasure: Path) -> None:
    with pytest.raises(ValueError, match=r"^out: .* exists and is not an empty folder"):
        je.train("digits", out=tmp_path, resume="auto")
    with pytest.raises(ValueError, match=r"^resume: expected a run to continue"):
        je.train("digits", out=tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"^resume: expected true, false or 'auto', got 'yes'"):
        je.train("digits", out=tmp_path, resume="yes")
    assert [path.name for path in tmp_path.iterdir()] == ["treasure"]


def test_a_cache_behind_a_link_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "photos").mkdir()
    for i in range(2):
        Image.fromarray(np.full((4, 4), i, np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    open_source(tmp_path / "photos", cache=tmp_path / "cache")
    (place,) = (tmp_path / "cache" / "folders").iterdir()
    place.rename(tmp_path / "moved")
    (tmp_path / "moved" / "index.json").unlink()
    os.symlink(tmp_path / "moved", place)
    assert not open_source(tmp_path / "photos", cache=tmp_path / "cache").in_memory
    assert "images are decoded whenever they are needed" in caplog.text
    assert not (tmp_path / "moved" / "index.json").exists()


def test_only_what_a_killed_write_left_is_taken_for_that(tmp_path: Path) -> None:
    for name in (".git", ".config.settings", ".hidden.json", "x.json.abcd1234.json", ".x.json.abcd1234.txt"):
        (tmp_path / name).touch()
    for name in (".x.json.abcd1234.json", ".checkpoint.ckpt.k3x_9qa0.ckpt"):
        (tmp_path / name).touch()
    assert {path.name for path in leftovers(tmp_path)} == {".x.json.abcd1234.json", ".checkpoint.ckpt.k3x_9qa0.ckpt"}


def test_a_cache_build_that_was_killed_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for i in range(2):
        Image.fromarray(np.full((4, 4), i, np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    open_source(tmp_path / "photos", cache=tmp_path / "cache")
    (place,) = (tmp_path / "cache" / "folders").iterdir()
    (place / ".pixels-0123.bin.abcd1234.bin").touch()
    open_source(tmp_path / "photos", cache=tmp_path / "cache")
    assert not leftovers(place)


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 125 + ".json")  # 255 bytes
    with atomic(path) as temporary:
        temporary.write_text("{}")
    assert path.read_text() == "{}"
