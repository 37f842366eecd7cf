"""What a report makes of posteriors, decoders, patches, many sizes, missing labels, missing images and bad input."""

import base64
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import jointembed as je
from jointembed._files import save_tensors
from jointembed.cli import main
from jointembed.data import open_source
from jointembed.decoding import NAMES, Decoder, DecoderConfig
from jointembed.model import Config, Model
from jointembed.report import write_report
from jointembed.report.encoded import affordable_scores, encode
from jointembed.report.facts import _evaluation, _extremes, _patches, _samples, choose, finite, gather, short
from jointembed.report.judged import _risk
from jointembed.report.patches import patch_features, patch_rgb
from jointembed.report.sprites import sprites


def untrained(method: str, backbone: str = "resnet10-tiny", **options: Any) -> Model:
    torch.manual_seed(0)
    return Config(method, options, backbone, 1, 8, [0.3], [0.4]).build()


def tile(about: dict[str, Any], index: int) -> np.ndarray:
    """Thumbnail (H, W, 3), found as the page finds it."""
    data = about["sheets"][index // about["per_sheet"]].partition(",")[2]
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))
    place = index % about["per_sheet"]
    x, y = place % about["columns"] * about["cell"], place // about["columns"] * about["cell"]
    width, height = about["sizes"][0 if len(about["sizes"]) == 1 else index]
    return sheet[y : y + height, x : x + width]


def test_the_uncertainty_is_the_variance_of_the_posterior() -> None:
    model = untrained("vje")
    digits = open_source("digits").subset(range(300))
    names = affordable_scores(model, None)
    assert names == ["joint", "variance", "entropy"]  # no density yet, and no slow score that nobody asked for
    assert affordable_scores(model, "sphere")[0] == "sphere"
    found = encode(model, digits, names)
    assert found.uncertainty is not None and digits.labels is not None
    expected = model.posterior(digits).variance.sum(1)
    torch.testing.assert_close(found.uncertainty, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.scores["joint"], model.anomaly_score(digits, "joint"), rtol=1e-4, atol=1e-3)
    facts = _extremes(found, "joint", digits)
    variance, labels = expected.numpy(), digits.labels.numpy()
    assert set(facts["extremes"]["least_certain"]) == set(np.argsort(variance)[-12:].tolist())
    assert set(facts["extremes"]["most_certain"]) == set(np.argsort(variance)[:12].tolist())
    for row in facts["class_variance"]:
        part = variance[labels == row["label"]]
        assert row["count"] == len(part)
        np.testing.assert_allclose([row["mean"], row["std"]], [part.mean(), part.std()], rtol=1e-3)


@pytest.mark.parametrize(
    ("method", "words"),
    [("simclr", "gives each image a point"), ("gje", "has no density of pairs")],
)
def test_no_uncertainty_is_explained(method: str, words: str) -> None:
    found = encode(untrained(method), open_source("digits").subset(range(8)), [])
    assert found.uncertainty is None and words in found.why_not


def test_a_posterior_that_is_equally_sure_of_all_is_no_uncertainty() -> None:
    model = untrained("gje")
    dim = model.method.joint_mean.shape[0]
    model.method.joint_mean.zero_()
    model.method.joint_moment.copy_(torch.eye(dim) + 0.1)
    found = encode(model, open_source("digits").subset(range(8)), [])
    assert found.uncertainty is None and found.why_not == "The posterior of gje is equally sure of every image."


def test_risk_by_hand() -> None:
    uncertainty = torch.tensor([0.3, 0.1, 0.9, 0.5, 0.7])
    correct = torch.tensor([True, True, False, False, True])
    found = _risk(uncertainty, correct)
    np.testing.assert_allclose(found["risk"], [0, 0, 1 / 3, 1 / 4, 2 / 5])  # in the order 0.1, 0.3, 0.5, 0.7, 0.9
    np.testing.assert_allclose(found["coverage"], [0.2, 0.4, 0.6, 0.8, 1])
    assert found["halves"] == pytest.approx([0, 2 / 3])
    assert found["aurc"] == pytest.approx(np.mean([0, 0, 1 / 3, 1 / 4, 2 / 5]))


def test_thumbnails_are_where_the_page_looks_for_them() -> None:
    rng = np.random.default_rng(0)
    flat = rng.integers(0, 256, (1100, 3, 1, 1), dtype=np.uint8)
    about = sprites(open_source(torch.from_numpy(np.tile(flat, (1, 1, 24, 24)))))
    assert about["cell"] == 32 and about["sizes"] == [(24, 24)] and len(about["sheets"]) == 2
    for index in (0, 31, 32, 1023, 1024, 1099):
        assert tile(about, index).shape == (24, 24, 3)
        inside = tile(about, index)[2:-2, 2:-2].astype(float)  # WebP blurs colours over a pixel
        assert np.abs(inside - flat[index, :, 0, 0]).max() < 8

    pictures = [Image.new("RGB", size, colour) for size, colour in (((300, 100), "red"), ((40, 200), "blue"))]
    about = sprites(open_source(pictures))
    assert about["sizes"] == [(96, 32), (19, 96)]
    assert np.abs(tile(about, 0).mean((0, 1)) - [255, 0, 0]).max() < 8
    assert np.abs(tile(about, 1).mean((0, 1)) - [0, 0, 255]).max() < 8


def test_pictures_of_a_decoder_are_its_own(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig(16, 1, 8)).eval()
    (folder / NAMES[0]).write_text(json.dumps(vars(decoder.config)))
    save_tensors(folder / NAMES[1], decoder.state_dict())
    model = je.load(folder)
    encoded = encode(model, open_source("digits").subset(range(40)), ["density"])
    found = _samples(model, folder, encoded, 0)
    expected = decoder.decode(model.sample(12, 0))[:, 0].numpy()
    for i in range(12):
        np.testing.assert_array_equal(tile(found["pictures"], i)[..., 0], expected[i])


def test_patches_are_those_of_the_transformer() -> None:
    model = untrained("lejepa", "vit-narrow", dim=4, projector_width=8)
    chosen = choose("digits", 1, 40, None, 0)
    found = _patches(model, chosen, 0)
    some: Tensor = torch.tensor(found["rows"])
    colours = patch_rgb(patch_features(model, chosen.shown.subset(some)), together=True)
    assert found["grid"] == list(colours.shape[1:3])
    for i in range(len(some)):
        np.testing.assert_array_equal(tile(found["pictures"], i), (255 * colours[i]).round().byte().numpy())
    assert "single patch" in _patches(untrained("lejepa", dim=4, projector_width=8), chosen, 0)["missing"]


def test_images_of_all_sizes_without_labels(run: Path) -> None:
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (8 + i, 8), dtype=np.uint8)) for i in range(12)]
    facts = gather([run], images)
    json.dumps(facts, allow_nan=False)
    found = facts["runs"][0]
    assert found["evaluation"] is None and found["missing"]["evaluation"].startswith("The data have no labels")
    assert found["spoilt"]["images"] == 12
    assert facts["images"]["labels"] is None and facts["images"]["names"][3] == "image 3"
    assert facts["images"]["sizes"][5] == [8, 13]
    assert [len(found["extremes"][kind]) for kind in ("strangest", "typical")] == [6, 6]
    assert not set(found["extremes"]["strangest"]) & set(found["extremes"]["typical"])


def test_few_labels_are_too_few(run: Path) -> None:
    source = open_source("digits").subset(range(40))
    assert source.labels is not None
    source.labels[10:] = -1
    found = _evaluation(je.load(run), choose(source, 1, 40, None, 0), encode(je.load(run), source, []), None, 0)
    assert found == {"missing": "Fewer than two classes have 5 images with labels."}


def test_a_collapsed_run_has_a_report_that_says_so(tmp_path: Path) -> None:
    model = untrained("lejepa", dim=4, projector_width=8)
    for parameter in model.method.backbone.parameters():
        parameter.data.zero_()
    model.save(tmp_path)
    facts = gather([tmp_path], "digits", 60)
    found = facts["runs"][0]
    json.dumps(facts, allow_nan=False)
    assert found["summary"]["checks"][0]["verdict"] == "warn"
    assert found["summary"]["checks"][0]["text"].startswith("Collapsed: all images get nearly the same features")
    assert found["summary"]["checks"][1]["verdict"] == "warn"
    assert any(words.startswith("Undo the collapse first") for words in found["summary"]["next"])
    assert None not in found["maps"]["t-SNE"]["x"] + found["maps"]["PCA"]["y"]
    assert "no metrics.csv" in found["history"]["missing"]


def test_numbers_for_json() -> None:
    values = short(torch.tensor([1.23456789, torch.nan, torch.inf, -1e-9]))
    assert finite({"a": [(values, "nan")], "b": True}) == {"a": [[[1.2346, None, None, -1e-9], "nan"]], "b": True}


def test_bad_input_is_refused_before_anything_is_written(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    (tmp_path / "folder.html").mkdir()
    for arguments, words in (
        ({"out": tmp_path / "r.pdf"}, r"^out: expected a file name ending in \.html, got "),
        ({"out": tmp_path / "folder.html"}, r"^out: expected a file, got the folder "),
        ({"runs": []}, r"^runs: expected at least one run folder"),
        ({"runs": tmp_path / "none"}, r"^run: expected a folder with config\.json"),
        ({"runs": [run, tmp_path / "none"]}, r"^run: expected a folder with config\.json"),
        ({"data": tmp_path / "none"}, r"^data: "),
        ({"images": 3}, r"^images: expected 4 to 20,000, got 3"),
        ({"score": "beauty"}, r"^score: expected one of density"),
        ({"false_alarm_rate": 1.0}, r"^false_alarm_rate: expected a number between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=words):
            write_report(**({"runs": run, "data": "digits", "out": out} | arguments))  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["folder.html"]


def test_without_images_the_page_shows_the_training(run: Path, tmp_path: Path, capsys: Any) -> None:
    main(["report", str(run), "--out", str(tmp_path / "r.html")])
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'r.html'}: ")
    content = (tmp_path / "r.html").read_text(encoding="utf-8")
    start = content.index('id="facts">') + len('id="facts">')
    found = json.loads(content[start : content.index("</script>", start)])
    assert found["images"] is None and len(found["runs"][0]["history"]["curves"]) == 6
    assert set(found["runs"][0]["missing"].values()) == {"No images were given (--data)."}
