import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jointembed as je
from jointembed.cli import main


def test_the_three_verbs_do_what_python_does(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x"
    flags = ["--projector-width", "32", "--dim", "16", "--num_slices", "64", "--lr=0.001", "--view_options.flip", "0.0"]
    main(["train", "--data", "digits", "--backbone", "resnet10-narrow", "--epochs", "1", "--out", str(out), *flags])
    config = json.loads((out / "config.json").read_text())
    assert config["method_options"]["dim"] == 16
    assert config["training"]["lr"] == 0.001
    assert config["training"]["view_options"] == {"flip": 0.0}

    main(["embed", str(out), "--data", "digits", "--out", str(tmp_path / "z.npz"), "--space", "projector"])
    with np.load(tmp_path / "z.npz") as arrays:
        np.testing.assert_allclose(arrays["embeddings"], je.load(out).embed("digits", "projector"), atol=1e-5)
        assert (arrays["labels"] == je.data.open_source("digits").labels.numpy()).all()

    main(["evaluate", str(out), "--data", "digits", "--linear", "none", "--pixels", "--out", str(tmp_path / "r.json")])
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["knn"] == je.evaluate(out, "digits", linear="none")["knn"]
    assert f"{100 * result['pixel_knn']:.2f} %" in capsys.readouterr().out


def test_a_yaml_file_gives_any_flag_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("method: lejepa\nbackbone: resnet10-narrow\nepochs: 7\ndim: 8\nnum_slices: 16\n")
    main(
        [
            "train",
            "--config",
            str(tmp_path / "run.yaml"),
            "--data",
            "digits",
            "--epochs",
            "1",
            "--out",
            str(tmp_path / "x"),
        ]
    )
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert config["training"]["epochs"] == 1
    assert config["method_options"]["dim"] == 8


def test_help_is_read_off_the_signatures(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--weight_decay" in text
    assert "--num_slices" in text  # the method's own
    assert "random directions per step" in text


def test_an_error_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^jointembed: run: expected a folder with config.json"):
        main(["embed", str(tmp_path), "--data", "digits"])
    with pytest.raises(SystemExit, match=r"^jointembed: out: expected a file name ending in .npz"):
        main(["embed", str(tmp_path), "--data", "digits", "--out", "z.txt"])
    with pytest.raises(ValueError, match="run: expected"):
        main(["--debug", "embed", str(tmp_path), "--data", "digits"])


def test_importing_the_package_does_not_import_what_is_slow() -> None:
    """Lightning and timm take longer to import than torch: they wait until something asks for them."""
    code = "import sys, jointembed; print(sorted({'lightning', 'timm', 'torchvision', 'sklearn'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
