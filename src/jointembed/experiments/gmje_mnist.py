"""GMJE, section 5.3: digits drawn from the density of an embedding, by three families of model."""

import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from jointembed import load, train
from jointembed._files import atomic
from jointembed.data import Source, open_source
from jointembed.decoding import load_decoder, train_decoder
from jointembed.distributions import GaussianMixture
from jointembed.model import Model

from .digit_judge import Judge, pixels_of
from .results import command, write_results

PROTOTYPES = 50
DIM = 128
NARROWER = 0.7  # samples nearer to the means, less various: a usual trade, not searched for
FAMILIES: dict[str, dict[str, Any]] = {
    "SimCLR": {"method": "simclr"},
    "GJE": {"method": "gje", "projector_layers": 2},
    "GMJE": {"method": "gmje", "prototypes": PROTOTYPES, "projector_layers": 2},
}
PAPER = {"SimCLR": (-878.99, 0.85, 0.55), "GJE": (-636.15, 0.99, None), "GMJE": (-621.58, 1.00, 1.43)}


def run(
    data: str = "mnist.npz",
    results: str = "results",
    out: str = "runs/gmje-mnist",
    epochs: int = 10,
    decoder_epochs: int = 10,
    images: int | None = None,
    samples: int = 10_000,
    seed: int = 0,
) -> None:
    """Train three encoders, a decoder of each one's frozen codes, draw codes from its density and decode them.

    Args:
        data: MNIST as an .npz, or its name.
        results: where the table and the figures go.
        out: for the trained models; those that are there already are used.
        epochs: of each encoder; the paper has 50.
        decoder_epochs: of each decoder; the paper has 50.
        images: training images; by default all.
        samples: drawn from each density.
        seed: of everything.
    """
    arguments, began = dict(locals()), time.perf_counter()
    source, test = padded(open_source(data), images), padded(open_source(data, split="test"), None)
    judge = Judge(source, test, seed)
    rows = [judge.row("test images", "", pixels_of(test))]
    drawn: dict[str, Tensor] = {"test images": pixels_of(test)[: GRID**2]}
    clouds, spent = {}, 0.0
    for family, options in FAMILIES.items():
        model, minutes = trained(Path(out) / family.lower(), source, options, epochs, decoder_epochs, seed)
        spent += 60 * minutes
        decoder = load_decoder(Path(out) / family.lower())
        codes = model.embed(source, "projector")
        radius = float(codes.norm(dim=1).mean())
        for how, density in densities(family, model, codes, seed).items():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                z = density.sample(torch.Size([samples]))
            pictures = decoder.decode(z)
            drawn[f"{family}, {how}"] = pictures[: GRID**2]
            rows.append(
                judge.row(family, how, pictures)
                | shape(codes / radius, density, radius)
                | dict(zip(("paper: log-volume", "paper: variance", "paper: spread"), PAPER[family], strict=True))
                | {"minutes": round(minutes, 1)}
            )
            if family not in clouds:
                clouds[family] = (codes[:MAPPED] / radius, nn.functional.normalize(z[:MAPPED], dim=1))
        rows.append(
            judge.row(family, "no sampling: test images decoded", decoder.decode(model.embed(test, "projector")))
        )
    columns = list(dict.fromkeys(key for one in rows for key in one))
    table = [{key: "-" if one.get(key) is None else one[key] for key in columns} for one in rows]
    title = (
        f"MNIST generation: encoders {epochs} and decoders {decoder_epochs} epochs, {samples:,} samples each; the "
        f"judge is right for {judge.accuracy:.1%} of the test images"
    )
    seconds = max(time.perf_counter() - began, spent)  # models trained by an earlier start count as well
    write_results(Path(results), "gmje-mnist", title, table, command(run, arguments), seconds)
    draw_samples(drawn, Path(results) / "gmje-mnist.png")
    draw_maps(clouds, seed, Path(results) / "gmje-mnist-map.png")


GRID = 8  # pictures in a row, and rows
MAPPED = 1000  # codes of each kind in a map


def padded(source: Source, images: int | None) -> Source:
    """Images of 28 x 28 within 32 x 32, and their labels; the first ones, if not all are wanted."""
    pixels = source.batch(range(len(source) if images is None else images))
    assert isinstance(pixels, Tensor) and source.labels is not None
    edge = [(32 - side) // 2 for side in pixels.shape[-2:]]
    return open_source(
        nn.functional.pad(pixels, (edge[1], edge[1], edge[0], edge[0])), labels=source.labels[: len(pixels)]
    )


def trained(
    folder: Path, source: Source, options: dict[str, Any], epochs: int, decoder_epochs: int, seed: int
) -> tuple[Model, float]:
    """A model with a decoder in its folder, both trained unless they are there, and the minutes that took."""

    def encoder() -> None:
        common: dict[str, Any] = {"backbone": "conv4", "preset": "mnist", "dim": DIM}
        train(source, out=folder, epochs=epochs, seed=seed, hold_out=0.0, watch_every=1, **common, **options)

    def decoder() -> None:
        train_decoder(folder, source, decoder_epochs, seed=seed)

    minutes = 0.0
    for part in (encoder, decoder):
        done = folder / f"{part.__name__}-minutes.txt"
        if not done.is_file():
            began = time.perf_counter()
            part()
            with atomic(done) as path:
                path.write_text(f"{(time.perf_counter() - began) / 60}\n")
        minutes += float(done.read_text())
    return load(folder), minutes


def densities(family: str, model: Model, codes: Tensor, seed: int) -> dict[str, Distribution]:
    """What to draw codes from: a family's own density, or, where it has none, one fitted afterwards."""
    method: Any = model.method
    if family == "SimCLR":
        return {f"mixture of {PROTOTYPES} fitted afterwards": fitted(codes[:10_000], seed)}  # as many as in the paper
    if family == "GJE":
        return {"its Gaussian": method.density()}
    mixture, own = method.view_density(), method.density()
    means = method.radius * nn.functional.normalize(mixture.means, dim=-1)
    uniform = torch.full_like(mixture.weights, 1 / len(mixture.weights))
    # The paper's way: the covariance of all codes around every prototype counts the prototypes' own spread twice.
    floor = 1e-4 * torch.eye(DIM)
    return {
        "its density": own,
        f"its density, deviations x {NARROWER}": GaussianMixture(
            own.weights, own.means, NARROWER**2 * own.covariances, validate_args=False
        ),
        "its density of views": mixture,
        "the paper's way": GaussianMixture(uniform, means, (codes.T.cov() + floor)[None], validate_args=False),
    }


def fitted(codes: Tensor, seed: int) -> GaussianMixture:
    """scikit-learn's mixture of full Gaussians, at most 20 steps of EM, as in the paper."""
    from sklearn.mixture import GaussianMixture as Mixture

    mixture = Mixture(PROTOTYPES, max_iter=20, reg_covar=1e-5, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged
        mixture.fit(codes.double().numpy())
    parts = (torch.from_numpy(values).float() for values in (mixture.weights_, mixture.means_, mixture.covariances_))
    return GaussianMixture(*parts, validate_args=False)


def shape(codes: Tensor, density: Distribution, radius: float) -> dict[str, Any]:
    """Table 2: log-volume and variance of unit codes (N, D), and how far apart a mixture's means are."""
    covariance = codes.double().mT.cov()
    spread = None
    if isinstance(density, GaussianMixture):
        spread = round(float(torch.pdist(nn.functional.normalize(density.means, dim=-1)).mean()), 2)
    return {
        "log-volume": round(float(torch.linalg.slogdet(covariance).logabsdet), 1),
        "variance": round(float(covariance.diagonal().sum()), 2),
        "spread": spread,
    }


def draw_samples(drawn: dict[str, Tensor], path: Path) -> None:
    """A grid of pictures for each density."""
    from matplotlib.figure import Figure
    from torchvision.utils import make_grid

    lines = math.ceil(len(drawn) / 4)
    figure = Figure(figsize=(13, 3.7 * lines), layout="constrained")
    axes = list(figure.subplots(lines, 4, squeeze=False).flat)
    for axis, (title, pictures) in zip(axes, drawn.items(), strict=False):
        axis.imshow(make_grid(pictures, GRID, padding=1, pad_value=96).permute(1, 2, 0), interpolation="nearest")
        axis.set_title(title, fontsize=9)
    for axis in axes:
        axis.set_axis_off()
    with atomic(path) as target:
        figure.savefig(target, dpi=110)


def draw_maps(clouds: dict[str, tuple[Tensor, Tensor]], seed: int, path: Path) -> None:
    """t-SNE of real and drawn codes together."""
    from matplotlib.figure import Figure
    from sklearn.manifold import TSNE

    figure = Figure(figsize=(4 * len(clouds), 4), layout="constrained")
    for axis, (family, (real, drawn)) in zip(figure.subplots(1, len(clouds)), clouds.items(), strict=True):
        places = TSNE(random_state=seed).fit_transform(torch.cat([real, drawn]).numpy())
        for part, label, colour in ((places[: len(real)], "real", "0.6"), (places[len(real) :], "drawn", "C3")):
            axis.scatter(*part.T, s=3, color=colour, label=label, alpha=0.7)
        axis.set(title=family, xticks=[], yticks=[])
        axis.legend(frameon=False, markerscale=3)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
