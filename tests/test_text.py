"""Names from outside, wherever they are shown: in tables for spreadsheets, on terminals, in logs and pictures."""

import csv
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tiny import TINY, tiny_network

import jointembed as je
from jointembed._tables import print_classes, print_rows
from jointembed._text import printable
from jointembed.cli import main
from jointembed.report.maps import embedding_map
from jointembed.scoring import FORMULA, write_table

EVIL = [
    "=cmd|'/c calc'!A1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "'quoted",
    "[red]x[/]",
    "[/]",
    "\x1b[2J",
    "a\nb",
]


@given(st.text())
def test_printable_text_is_printable_and_keeps_what_was(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()


@pytest.mark.parametrize("name", EVIL)
def test_no_cell_of_a_table_is_a_formula_and_every_name_can_be_had_back(tmp_path: Path, name: str) -> None:
    write_table(tmp_path / "x.csv", {"name": [name, "plain.png"], "score": np.array([-1.5, 2.0])})
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["name"].removeprefix("'") == name
    assert rows[0]["name"].startswith("'") == name.startswith(FORMULA)
    assert (rows[1]["name"], rows[0]["score"]) == ("plain.png", "-1.5")  # a number stays one


def test_tables_on_a_terminal_show_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows("[bold]title[/bold]", ("[red]a", "b"), [(name, "1") for name in EVIL])
    names = ["[/]", "\x1b[31mred"]
    print_classes(
        {"per_class": {"knn": dict.fromkeys(names, 0.5)}, "confusion": {"classes": names, "knn": [[1, 2], [3, 4]]}}
    )
    said = capsys.readouterr().out
    assert "\x1b[2J" not in said and "\x1b[31m" not in said
    for text in ("[bold]title[/bold]", "[red]a", "[red]x[/]", "\\x1b[2J", "a\\nb", "\\x1b[31mred"):
        assert text in said


def photographs(folder: Path, names: list[str]) -> Path:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for name in names:
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / name, format="PNG")
    return folder


def test_a_file_name_forges_no_line_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = photographs(tmp_path / "photos", [f"{i}.png" for i in range(20)])
    forged = "x\n2026-01-01 00:00:00 INFO all is well \x1b[2J.png"
    (folder / forged).write_text("no picture")
    with caplog.at_level(logging.WARNING, "jointembed"):
        je.train(folder, backbone=tiny_network(), out=tmp_path / "x", epochs=1, progress=False, **TINY)
    lines = (tmp_path / "x" / "log.txt").read_text().splitlines()
    assert not [line for line in lines if line.startswith("2026-01-01")]
    assert any(r"x\n2026-01-01 00:00:00 INFO all is well \x1b[2J.png" in line for line in lines)
    assert "\x1b" not in caplog.text


def test_an_error_on_the_terminal_holds_no_control_character(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["embed", f"{tmp_path}/\x1b[2Jx", "--data", "digits"])
    assert "\x1b" not in str(raised.value)
    assert r"\x1b[2Jx" in str(raised.value)


def test_scores_of_files_with_any_name_can_be_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = [name + ".png" for name in EVIL if "/" not in name] + [
        "$\\frac$.png",
        "😀.png",
        "é" * 125 + ".png",
        "\udcff.png",
    ]
    folder = photographs(tmp_path / "photos", names)
    main(["score", str(run), "--data", str(folder), "--out", str(tmp_path / "x.csv"), "--false-alarm-rate", "0.1"])
    with (tmp_path / "x.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        found = [
            row["name"].removeprefix("'") if row["name"].startswith("'") else row["name"]
            for row in csv.DictReader(file)
        ]
    assert sorted(found) == sorted(names)
    assert (tmp_path / "x.png").is_file()


def test_class_names_are_no_formulas_and_none_is_left_out_of_a_map(tmp_path: Path) -> None:
    z, labels = torch.randn(30, 4), torch.arange(30) % 3
    embedding_map({"x": z}, labels, ["$\\frac$", "_hidden", "a\nb"], tmp_path / "x.png")
    assert (tmp_path / "x.png").is_file()
