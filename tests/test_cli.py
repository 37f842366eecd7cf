import csv
import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

import jointembed as je
from jointembed._usage import EXAMPLES
from jointembed.cli import VERBS, main
from jointembed.completion import method_options, script
from jointembed.experiments import EXPERIMENTS
from jointembed.model import Config
from jointembed.training import train


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


def write_run(folder: Path, method: str = "vje", seed: int = 0) -> Path:
    """A run folder of a model as it is before the first step."""
    torch.manual_seed(seed)
    Config(method, {}, "resnet10-tiny", 1, 8, [0.3], [0.4]).build().save(folder)
    return folder


def test_evaluate_says_more_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "x")
    flags = ["--linear", "none", "--shots", "[1,3]", "--draws", "2", "--per-class", "--seed", "4"]
    main(["evaluate", str(run), "--data", "digits", *flags, "--out", str(tmp_path / "r.json")])
    result = json.loads((tmp_path / "r.json").read_text())
    python = je.evaluate(run, "digits", linear="none", shots=(1, 3), draws=2, per_class=True, seed=4)
    for name in ("knn", "per_class", "confusion"):
        assert result[name] == python[name]
    said = " ".join(capsys.readouterr().out.split())
    for number in (1, 3):
        found = result["few_shot"][str(number)]
        assert found == python["few_shot"][number]
        assert f"{number} per class │ {100 * found['mean']:.2f} ± {100 * found['std']:.2f} %" in said
    assert f"│ 7 │ {100 * python['per_class']['knn']['7']:.2f} % │" in said
    assert "│ 7 │ " + " │ ".join(map(str, python["confusion"]["knn"][7])) + " │" in said
    with pytest.raises(SystemExit, match=r"^jointembed: shots: expected at least 999 training images of every class"):
        main(["evaluate", str(run), "--data", "digits", "--shots", "[999]"])


def test_select_ranks_as_python_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write_run(tmp_path / f"v{seed}", "vje", seed)) for seed in range(2)]
    images = tmp_path / "images.npy"
    np.save(images, je.data.open_source("digits").batch(range(80)).numpy())
    main(["select", *runs, "--data", str(images), "--out", str(tmp_path / "r.json")])
    python = je.evaluation.select(runs, data=images)
    assert json.loads((tmp_path / "r.json").read_text()) == {"rows": python.rows, "notes": []}
    said = capsys.readouterr().out
    table = [[word.strip() for word in line.split("│")[1:-1]] for line in said.splitlines() if "vje" in line]
    assert [(row[0], row[2], row[3]) for row in table] == [
        (str(row["rank"]), "vje", f"{row['value']:.5g}") for row in python.rows
    ]

    lejepa = write_run(tmp_path / "lejepa", "lejepa")
    (lejepa / "metrics.csv").write_text("epoch,loss\n0,0.5\n")
    main(["select", str(lejepa), *runs, "--data", str(images)])
    said = capsys.readouterr().out
    assert "by lejepa" in said and "by information" in said
    assert f"{0.5 / 0.02**0.4:.5g}" in said
    assert "ranked apart, by lejepa and by information" in said
    with pytest.raises(
        SystemExit, match=r"^jointembed: data: expected images to measure features of, for .*v0 \(vje\)"
    ):
        main(["select", *runs])
    with pytest.raises(
        SystemExit, match=r"^jointembed: runs: expected run folders with a config.json, not so: nowhere$"
    ):
        main(["select", str(lejepa), "nowhere"])


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of 30 digits the model has not seen, and 10 pictures of noise."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "pictures"
    folder.mkdir()
    digits = je.data.open_source("digits", split="test").batch(range(30))[:, 0].numpy()
    noise = np.random.default_rng(0).integers(0, 256, (10, *digits.shape[1:]), np.uint8)
    for i, pixels in enumerate([*digits, *noise]):
        Image.fromarray(pixels).save(folder / f"{'digit' if i < 30 else 'noise'}{i:02}.png")
    return folder


def test_score_writes_what_python_finds(
    run: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scores.csv"
    main(["score", str(run), "--data", str(pictures), "--out", str(out), "--false-alarm-rate", "0.1"])
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == sorted(path.name for path in pictures.iterdir())
    scores = np.array([float(row["score"]) for row in rows])
    model = je.load(run)
    np.testing.assert_allclose(scores, model.anomaly_score(pictures).numpy(), rtol=1e-4)

    kind = model.method.scores[0]
    train, held_out = (model.reference[f"{part}/{kind}"].double().numpy() for part in ("train", "held_out"))
    ranks = stats.percentileofscore(train, scores, kind="weak")
    np.testing.assert_allclose([float(row["percentile"]) for row in rows], ranks, atol=100 / len(train))
    limit = np.sort(held_out)[-int((len(held_out) + 1) * 0.1)]
    assert [row["flag"] for row in rows] == [str(int(score > limit)) for score in scores]

    said = capsys.readouterr().out
    assert f"40 images of {pictures}, {(scores > limit).sum()} flagged" in said
    assert f"{kind} above {limit:.4g}" in said
    assert f"from {len(held_out)} held-out training images" in said
    with Image.open(tmp_path / "scores.png") as sheet:
        assert sheet.format == "PNG" and min(sheet.size) > 800


def test_score_writes_parquet_and_no_sheet_if_told_so(run: Path, pictures: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "out" / "scores.parquet"
    main(["score", str(run), "--data", str(pictures), "--out", str(out), "--sheet", "none"])
    table = parquet.read_table(out)
    assert table.column_names == ["name", "score", "percentile", "flag"]
    np.testing.assert_allclose(table["score"].to_numpy(), je.load(run).anomaly_score(pictures).numpy(), rtol=1e-4)
    assert [path.name for path in out.parent.iterdir()] == ["scores.parquet"]


def test_score_refuses_before_it_works(run: Path, pictures: Path, tmp_path: Path) -> None:
    begin = ["score", str(run), "--data", str(pictures), "--out", str(tmp_path / "x.csv")]
    with pytest.raises(SystemExit, match=r"^jointembed: out: expected a file name ending in .csv or .parquet"):
        main([*begin, "--out", str(tmp_path / "x.txt")])
    with pytest.raises(SystemExit, match=r"^jointembed: sheet: expected a file name ending in .png, or none"):
        main([*begin, "--sheet", "x.jpg"])
    with pytest.raises(SystemExit, match=r"^jointembed: false_alarm_rate: 1e-05 needs at least 99,999 held-out images"):
        main([*begin, "--false_alarm_rate", "1e-5"])
    with pytest.raises(SystemExit, match=r"^jointembed: score: expected one of "):
        main([*begin, "--score", "luck"])
    assert not list(tmp_path.glob("x.*"))


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
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 200  # a backbone is a name here: no list of every module there is
    text = " ".join(" ".join(lines).split())
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


def test_the_first_page_fits_a_screen_and_every_verb_gives_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert [name for name in VERBS if any(line.split()[:1] == [name] for line in lines)] == list(VERBS)
    for verb in VERBS:
        assert EXAMPLES[verb].startswith(f"jointembed {verb}") or verb == "completion"
    with pytest.raises(SystemExit):
        main(["embed", "--help"])
    assert capsys.readouterr().out.splitlines()[-1] == f"example: {EXAMPLES['embed']}"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("trian --data x", r"verb: expected one of train, .*, got 'trian'; did you mean train\?"),
        ("--foo", "verb: expected one of train, .*, got '--foo'"),
        ("embed x --data digits --spcae z", r"--spcae: embed has no such flag; did you mean --space\?"),
        ("embed x y --data digits", "y: embed has no such argument"),
        ("embed", "embed: expected RUN, --data, e.g. jointembed embed runs/x --data photos"),
        ("embed x --data digits --batch-size many", "batch_size: expected a whole number, got many"),
        ("evaluate x --data digits --linear foo", "linear: expected one of 'lbfgs', 'sgd', 'none', got foo"),
        ("embed x --data", "--data: expected one argument"),
        ("methods vej", "method: expected one of vje, "),
    ],
)
def test_a_slip_is_answered_with_a_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=f"^jointembed: {sentence}") as raised:
        main(words.split())
    assert "\n" not in str(raised.value)
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ValueError, match=sentence):
        main([*words.split(), "--debug"])


@pytest.mark.parametrize("verb", VERBS)
def test_ctrl_c_ends_every_verb_quietly(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jointembed.cli._add_arguments", lambda parser, *_: parser.add_argument("run", nargs="*"))
    monkeypatch.setitem(VERBS, verb, ("", lambda argv: lambda run: work()))
    with pytest.raises(SystemExit) as raised:
        main([verb, "x"])
    assert raised.value.code == 130
    assert capsys.readouterr() == ("", "")


GENERATIVE = ("gje", "gmje", "gmje-mdn", "gmje-smc", "lejepa", "lejepa-mdn", "lejepa-vje", "vje")


def test_methods_are_listed_with_what_their_models_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    for name in je.methods.names():
        cls, found = je.methods.get(name), je.methods.offers(je.methods.get(name))
        assert found["summary"].endswith(".") and " on a backbone" not in found["summary"]
        assert (found["posterior"] == "yes") == callable(getattr(cls, "posterior", None))
        assert (found["samples"] == "yes") == (name in GENERATIVE)
        assert found["scores"].split(", ") == list(cls.scores)
        assert all(text for _, text in je.methods.describe_options(cls).values()), name
    main(["methods"])
    said = capsys.readouterr().out
    assert all(name in said for name in je.methods.names())
    main(["methods", "vje"])
    said = " ".join(capsys.readouterr().out.split())
    assert "beta" in said and "weight of the KL divergence" in said and "1.0" in said


def complete(*words: str) -> set[str]:
    """What bash offers for the last word."""
    line = f"COMP_WORDS=({' '.join(f'{word!r}' for word in words)}); COMP_CWORD={len(words) - 1}"
    text = f'{script("bash")}\n{line}\n_jointembed\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
    return set(subprocess.run(["bash", "-c", text], check=True, capture_output=True, text=True).stdout.split())


def test_the_shell_completes_what_there_is() -> None:
    assert complete("jointembed", "") == {*VERBS, "--help", "--debug"}
    assert complete("jointembed", "ex") == {"export"}
    assert complete("jointembed", "reproduce", "") == set(EXPERIMENTS)
    assert complete("jointembed", "train", "--method", "vj") == {"vje"}
    assert complete("jointembed", "methods", "") == set(je.methods.names())
    common = set(inspect.signature(train).parameters) - {"method_options"}
    for method in ("lejepa", "vje", "gmje-smc"):
        own = set(je.methods.get(method).options())
        found = complete("jointembed", "train", "--method", method, "--")
        assert found == {f"--{name}" for name in common | own | {"config", "help", "debug"}}
    assert method_options() == {name: list(je.methods.get(name).options()) for name in je.methods.names()}


def test_help_and_completion_do_not_import_torch() -> None:
    code = "import sys; from jointembed.cli import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    for words in (["--help"], ["completion", "bash"], ["completion", "zsh"]):
        subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)
