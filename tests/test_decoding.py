"""Decoders and pictures of samples."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import jointembed as je
from jointembed.cli import main
from jointembed.decoding import Decoder, DecoderConfig, load_decoder, sample_images, train_decoder
from jointembed.report.facts import gather


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoding") / "run"
    je.train(
        "digits", "gmje", "resnet10-tiny", epochs=2, out=folder, batch_size=128, preset="mnist", dim=32,
        projector_width=64, hold_out=0.0, progress=False,
    )  # fmt: skip
    train_decoder(folder, "digits", epochs=12, batch_size=64, lr=3e-3)
    return folder


def test_a_decoder_shows_what_was_embedded(folder: Path) -> None:
    source = je.data.open_source("digits")
    images = source.batch(range(300)).float()
    model = je.load(folder)
    found = load_decoder(folder).decode(model.embed(source.subset(range(300)), "projector")).float()
    mean = source.batch(range(len(source))).float().mean(0)
    error, guess = (found - images).square().mean(), (mean - images).square().mean()
    assert float(error) < 0.6 * float(guess)  # the mean image is what one knows without the embedding


def test_samples_look_like_the_data_and_repeat(folder: Path) -> None:
    samples = sample_images(folder, 50, seed=3)
    assert samples.shape == (50, 1, 8, 8) and samples.dtype == torch.uint8
    assert samples.equal(sample_images(folder, 50, seed=3)) and not samples.equal(sample_images(folder, 50, seed=4))
    digits = je.data.open_source("digits").batch(range(1000)).float().flatten(1)
    noise = torch.randint(256, (50, 64), generator=torch.Generator().manual_seed(0)).float()
    nearest = lambda x: float(torch.cdist(x, digits).amin(1).mean())  # noqa: E731
    assert nearest(samples.float().flatten(1)) < 0.6 * nearest(noise)


def test_samples_given_an_image_resemble_it(folder: Path) -> None:
    source = je.data.open_source("digits")
    context = source.subset(range(20))
    images = context.batch(range(20)).float()
    given = sample_images(folder, 16, context, seed=0).float()
    assert given.shape == (20, 16, 1, 8, 8)
    distances = torch.cdist(given.mean(1).flatten(1), images.flatten(1))
    assert float(distances.diagonal().mean()) < float(distances.mean())


@pytest.mark.parametrize("size", [8, 16, 28, 50])
def test_any_size_and_number_of_channels(size: int) -> None:
    decoder = Decoder(DecoderConfig(5, 2, size, hidden=16, width=32))
    assert decoder.decode(torch.randn(3, 5)).shape == (3, 2, size, size)


def test_embeddings_of_one_norm_are_decoded_from_their_sphere() -> None:
    z = 3 * torch.nn.functional.normalize(torch.randn(100, 5), dim=1)
    decoder = Decoder(DecoderConfig(5, 1, 16, hidden=16, width=32)).eval()
    decoder.fit_scale(z)
    torch.testing.assert_close(decoder(z), decoder(7 * z))
    decoder.fit_scale(torch.randn(100, 5))
    assert not torch.allclose(decoder(z), decoder(7 * z))


def test_the_command_line_draws_pictures(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["sample", str(folder), "-n", "9", "--out", str(tmp_path / "samples.png")])
    assert Image.open(tmp_path / "samples.png").size == (3 * 9 + 1, 3 * 9 + 1)
    np.save(tmp_path / "some.npy", je.data.open_source("digits").batch(range(4)).numpy())
    context = ["--context", str(tmp_path / "some.npy"), "--n", "5"]
    main(["sample", str(folder), *context, "--out", str(tmp_path / "context.png")])
    assert Image.open(tmp_path / "context.png").size == (6 * 9 + 1, 4 * 9 + 1)
    assert "24 pictures" in capsys.readouterr().out


def test_a_method_without_a_density_says_which_have_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scored by a Gaussian all the same; refused before a decoder is asked for, or trained."""
    model = je.train(
        "digits", "simsiam", "resnet10-tiny", epochs=1, out=tmp_path / "run", batch_size=256, preset="mnist", dim=16,
        projector_width=32, hold_out=0.0, progress=False,
    )  # fmt: skip
    refused = "^method: 'simsiam' has no density to sample from, .*; those that have: gje, gmje, .*, lejepa, .*vje$"
    for call in (lambda: model.sample(3), lambda: sample_images(tmp_path / "run", 3)):
        with pytest.raises(ValueError, match=refused):
            call()
    for verb in (["sample"], ["decode", "--data", "digits"]):
        with pytest.raises(SystemExit, match="'simsiam' has no density to sample from"):
            main([*verb, str(tmp_path / "run")])
    assert not (tmp_path / "run" / "decoder.json").exists()
    assert model.anomaly_score(je.data.open_source("digits").batch(range(5))).isfinite().all()
    (described,) = gather([tmp_path / "run"], "digits", images=100)["runs"]
    assert "follow no density" in described["missing"]["samples"] and described["samples"] is None


def test_bad_input_is_named(folder: Path, run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no decoder.json; make one with `jointembed decode"):
        sample_images(run, 3)
    with pytest.raises(ValueError, match="n: expected at least 1, got 0"):
        sample_images(folder, 0)
    with pytest.raises(ValueError, match=r"z: expected \(N, 32\), got shape \(3, 4\)"):
        load_decoder(folder).decode(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="epochs: expected a number above 0"):
        train_decoder(folder, "digits", epochs=0)
    with pytest.raises(SystemExit, match=r"out: expected a file name ending in .png"):
        main(["sample", str(folder), "--out", "x.jpg"])
    with pytest.raises(ValueError, match="'lejepa' gives no posterior per image; those that do: "):
        je.load(run).posterior("digits")
