"""VJE: whether its uncertainty can be trusted. Does it track errors, and does it rise as images get worse?"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jointembed import train
from jointembed._files import atomic
from jointembed.evaluation import aurc, corruption_response, linear_predict
from jointembed.metrics import knn_predict

from .results import command, write_results
from .small import SMALL, parts

SCORES = ("entropy", "variance", "joint", "density")


def run(
    data: str = "cifar10.npz",
    results: str = "results",
    images: int = 8_000,
    epochs: int = 5,
    test_images: int = 2_000,
    changes: dict[str, Any] | None = None,
) -> None:
    """Train one model on a part of CIFAR-10 and ask its scores for errors and corruptions of the test images.

    Args:
        data: CIFAR-10 as an .npz, or its name.
        results: where the table and the figure go.
        images: training images.
        epochs: passes over them.
        test_images: whose predictions and corruptions are looked at.
        changes: arguments of `jointembed.train` to change.
    """
    arguments, began = dict(locals()), time.perf_counter()
    source, test = parts(data, images, held_out=False, test_images=test_images)
    assert source.labels is not None and test.labels is not None
    with TemporaryDirectory() as folder:
        options = SMALL | {"batch_size": 32, "epochs": epochs} | (changes or {})
        model = train(source, "vje", out=Path(folder) / "run", **options)
    z, z_test, scores = model.embed(source), model.embed(test), model.anomaly_scores(test, SCORES)
    right = {
        "k-NN": knn_predict(z, source.labels, z_test).argmax(1) == test.labels,
        "linear": linear_predict(z, source.labels, z_test) == test.labels,
    }
    responses = {score: corruption_response(model, test, score=score) for score in SCORES}
    rows = [
        {"score": score}
        | {f"{name} errors": f"{aurc(scores[score], correct)['normalised']:.2f}" for name, correct in right.items()}
        | {
            f"{name}, rank correlation": f"{found['spearman']:+.2f}{' (monotone)' if found['monotone'] else ''}"
            for name, found in responses[score].items()
        }
        for score in SCORES
    ]
    accuracy = ", ".join(f"{name} {100 * float(correct.float().mean()):.1f} %" for name, correct in right.items())
    title = (
        f"VJE: do scores warn of errors (area under risk over coverage: 0 the best order, 1 a random one; {accuracy}), "
        f"and do they rise with corruption? {images:,} images of CIFAR-10, {epochs} epochs, {test_images:,} test images"
    )
    write_results(Path(results), "vje-uncertainty", title, rows, command(run, arguments), time.perf_counter() - began)
    draw(responses, Path(results) / "vje-uncertainty.png")


def draw(responses: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """Share of images that score higher than they do clean, by severity, a panel for each corruption."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    corruptions = list(next(iter(responses.values())))
    for axis, corruption in zip(figure.subplots(1, len(corruptions), sharey=True), corruptions, strict=True):
        for score, response in responses.items():
            found = response[corruption]
            axis.plot(found["severity"][1:], [100 * share for share in found["rose"][1:]], marker="o", label=score)
        axis.axhline(50, color="grey", linewidth=0.8, linestyle=":")
        axis.set(title=corruption, xlabel="severity", ylim=(0, 100))
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("% of images that score higher")
    figure.axes[0].legend(frameon=False, fontsize=8)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
