"""What the command line can do beside training: each verb is a function, and its flags are its arguments.

Libraries are imported where they are used: listing the verbs needs none of them.
"""

from pathlib import Path
from typing import Any, Literal


def embed(run: str, data: Any, out: str = "embeddings.npz", space: str | None = None, batch_size: int = 256) -> None:
    """Embed images with a trained model.

    Args:
        run: the run folder.
        data: a folder of images, an .npz or .npy file, or the name of a data set.
        out: the .npz or .parquet to write: embeddings, and names and labels where the data have them.
        space: which embedding, e.g. projector; by default the features.
        batch_size: images per forward pass.
    """
    from jointembed.embeddings import check_embeddings, write_embeddings
    from jointembed.model import load

    target = check_embeddings(out)
    model = load(run)
    source = model.open(data)
    z = model.embed(source, space, batch_size)
    write_embeddings(target, z, source.names, source.labels)
    print(f"{target}: {' x '.join(map(str, z.shape))} embeddings of {source.name}")


def evaluate(
    run: str,
    data: Any,
    space: str | None = None,
    k: int = 30,
    linear: Literal["lbfgs", "sgd", "none"] = "lbfgs",
    pixels: bool = False,
    root: str | None = None,
    out: str | None = None,
    seed: int = 0,
    shots: tuple[int, ...] = (),
    draws: int = 5,
    fine_tune_epochs: int = 0,
    view_options: dict[str, Any] | None = None,
    geometry: bool = False,
    per_class: bool = False,
) -> None:
    """Measure a trained model on labelled images: k-NN and linear accuracy, and more on request.

    Args:
        run: the run folder.
        data: labelled images; the test split is scored, or a fifth held out if there is none.
        space: which embedding, e.g. projector; by default the features.
        k: neighbours.
        linear: lbfgs on cached features, sgd for the papers' protocol with augmentation, or none.
        pixels: also the k-NN accuracy of raw pixels.
        root: where torchvision data sets are, or go.
        out: a JSON file for the figures.
        seed: of the hold-out, the probes and the draws.
        shots: also few-shot accuracy with so many labelled images per class, e.g. [1,2,5,10,100].
        draws: of these images, for each number.
        fine_tune_epochs: also the accuracy after so many epochs of fine-tuning a copy of the whole backbone.
        view_options: changes to the crops and flips of fine-tuning and of --linear sgd, e.g. flip.
        geometry: also rank, spectrum, isotropy, spread and Gaussianity of the embeddings.
        per_class: also the accuracy of each class, and the confusion matrix.
    """
    import json

    from jointembed._files import atomic
    from jointembed._tables import print_classes, print_table
    from jointembed.evaluation import evaluate as measure

    options: dict[str, Any] = {"shots": shots, "draws": draws, "geometry": geometry, "per_class": per_class}
    options |= {"fine_tune_epochs": fine_tune_epochs, "view_options": view_options}
    result = measure(run, data, space, k, linear, pixels, root=root, seed=seed, **options)
    print_table(f"{run} on {data}", result)
    if per_class:
        print_classes(result)
    if out is not None:
        with atomic(Path(out)) as path:
            path.write_text(json.dumps(result, indent=2) + "\n")


def select(
    runs: list[str],
    criterion: str = "auto",
    data: Any = None,
    images: int = 5_000,
    space: str | None = None,
    root: str | None = None,
    seed: int = 0,
    out: str | None = None,
) -> None:
    """Rank runs without labels.

    Args:
        runs: the run folders.
        criterion: lejepa (training loss / lambda^0.4, for LeJEPA runs), or a measure of the features of data:
            information, the best where views are alike, rank_me, effective_rank, lidar, alpha_req, isotropy,
            uniformity. By default lejepa for LeJEPA runs and information for others, which are then ranked apart.
        data: images, labels unused: a folder, an .npz or .npy file, or the name of a data set; lejepa needs none.
        images: at most so many of them.
        space: which embedding is measured, e.g. projector; by default the features.
        root: where torchvision data sets are, or go.
        seed: of the views that information and lidar are measured on.
        out: a JSON file for the ranking.
    """
    import json

    from jointembed._files import atomic
    from jointembed._tables import print_rows
    from jointembed.evaluation import select as rank

    found = rank(runs, criterion, data, images, space, root, seed)
    for name in dict.fromkeys(row["criterion"] for row in found.rows):
        rows = [row for row in found.rows if row["criterion"] == name]
        print_rows(f"by {name}", ("rank", "run", "method", name), [_ranked(row) for row in rows])
    for note in found.notes:
        print(note)
    if out is not None:
        with atomic(Path(out)) as path:
            path.write_text(json.dumps({"rows": found.rows, "notes": found.notes}, indent=2) + "\n")


def _ranked(row: dict[str, Any]) -> tuple[str, ...]:
    return str(row["rank"]), row["run"], row["method"], f"{row['value']:.5g}"


def score(
    run: str,
    data: Any,
    out: str = "scores.csv",
    score: str | None = None,
    false_alarm_rate: float | None = None,
    sheet: str | None = None,
    batch_size: int = 256,
    root: str | None = None,
) -> None:
    """Score images by how strange they are to a trained model, and flag the strangest. No labels are needed.

    Args:
        run: the run folder.
        data: a folder of images, an .npz or .npy file, or the name of a data set.
        out: the .csv or .parquet to write: name, score, percentile among the training images, flag.
        score: which of the method's scores; by default its first.
        false_alarm_rate: the share of normal images that may be flagged; by default 0.05, or what the held-out images
            can vouch for where they are fewer than 19.
        sheet: a .png of the strangest and the most typical images; by default beside out, none for no sheet.
        batch_size: images per forward pass.
        root: where torchvision data sets are, or go.
    """
    import math

    from jointembed.data import open_source
    from jointembed.model import load
    from jointembed.report import contact_sheet
    from jointembed.scoring import check_table, score_images, write_table

    table = check_table(out)
    picture = table.with_suffix(".png") if sheet is None else Path(sheet)
    if sheet != "none" and picture.suffix != ".png":
        raise ValueError(f"sheet: expected a file name ending in .png, or none, got {sheet}")
    model = load(run)
    channels = model.config.channels if model.config.channels in (1, 3) else None
    source = open_source(data, root=root, channels=channels, minimum=1)
    found = score_images(model, source, score, false_alarm_rate, batch_size)
    write_table(table, found.columns())
    limit, flagged = found.threshold, int(found.flag.sum())
    print(f"{table}: {len(source):,} images of {source.name}, {flagged:,} flagged")
    asked = _per_cent(limit.false_alarm_rate)
    print(f"flagged: {found.kind} above {limit.value:.4g}; asked for: at most {asked} of normal images")
    if math.isnan(limit.low):
        print("true false-alarm rate: unknown, see the warning")
    else:
        low, high = _per_cent(limit.low), _per_cent(limit.high)
        print(f"true false-alarm rate: {low} to {high} (95 % interval from {limit.images:,} held-out training images)")
    if sheet != "none":
        contact_sheet(source, found.score, picture, source.names, flagged=found.flag)
        print(f"{picture}: the strangest and the most typical images")


def decode(run: str, data: Any, epochs: int = 20, batch_size: int = 256, lr: float = 1e-3, seed: int = 0) -> None:
    """Train a decoder of a model's embeddings, so that samples can be looked at. The model itself does not change.

    Args:
        run: the run folder, where the decoder goes too.
        data: images to learn from, best those the model was trained on.
        epochs: passes over them.
        batch_size: images per step.
        lr: learning rate of Adam.
        seed: of the weights and the order.
    """
    from jointembed.decoding import NAMES, train_decoder
    from jointembed.model import load

    model = load(run)
    if not hasattr(model.method, "posterior"):
        model.check_generative()  # a decoder would have nothing to show
    train_decoder(run, data, epochs, batch_size, lr, seed)
    rest = "" if model.method.generative else " --context IMAGES"
    print(f"{Path(run) / NAMES[1]}: now `jointembed sample {run}{rest}`")


def sample(run: str, n: int = 64, out: str = "samples.png", context: str | None = None, seed: int = 0) -> None:
    """Draw embeddings from a model's own density and decode them into a picture.

    Args:
        run: the run folder, with a decoder (`jointembed decode`).
        n: how many; with a context, for each of its images.
        out: the .png to write.
        context: images whose other views to draw, e.g. a folder: a row each, the image first.
        seed: of the draws.
    """
    from torchvision.utils import save_image

    from jointembed._files import atomic
    from jointembed.decoding import picture

    target = Path(out)
    if target.suffix != ".png":
        raise ValueError(f"out: expected a file name ending in .png, got {out}")
    pictures, columns = picture(run, n, context, seed)
    with atomic(target) as path:
        save_image(pictures, path, nrow=columns, padding=1)
    print(f"{target}: {len(pictures)} pictures")


def patches(run: str, data: Any, out: str = "patches.png", n: int = 8, together: bool = False, seed: int = 0) -> None:
    """Show what a model sees where: patch features as colours and, of a vision transformer, its attention.

    Args:
        run: the run folder.
        data: a folder of images, an .npz or .npy file, or the name of a data set.
        out: the .png to write: a row per image.
        n: how many images, drawn at random.
        together: colours that mean the same in all images, instead of each image's own.
        seed: of the draw.
    """
    import torch

    from jointembed.model import load
    from jointembed.report.patches import patch_sheet

    if Path(out).suffix != ".png":
        raise ValueError(f"out: expected a file name ending in .png, got {out}")
    if n < 1:
        raise ValueError(f"n: expected at least 1, got {n}")
    model = load(run)
    source = model.open(data)
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    few = source.subset(order[:n].sort().values)
    patch_sheet(model, few, out, together)
    print(f"{out}: {len(few)} images of {source.name}")


def export(run: str, out: str, format: Literal["onnx", "torchscript", "timm", "safetensors"] = "onnx") -> None:
    """Write a trained model as a file that needs no jointembed.

    Args:
        run: the run folder.
        out: the file to write: .onnx, .pt for torchscript, .safetensors for the others. One that exists is refused.
        format: onnx or torchscript, from images to features, posterior and scores; timm, a checkpoint of the backbone
            for timm; safetensors, its weights with what its images must be like.
    """
    from rich.console import Console

    from jointembed.exporting import check_export, export
    from jointembed.model import load

    path = check_export(out, format)
    with Console(stderr=True).status(f"writing {format}"):
        how = export(load(run), path, format)
    print(f"{path}: use it with\n{how}")


def methods(name: str | None = None) -> None:
    """List the methods and what each offers, or one method's options.

    Args:
        name: of the method whose options to show.
    """
    import shutil
    import textwrap

    from jointembed import methods
    from jointembed._tables import print_rows

    if name is not None:
        cls = methods.get(name)
        rows = [(option, text, default) for option, (default, text) in methods.describe_options(cls).items()]
        print_rows(f"{name}: {methods.summary(cls)}", ("option", "", "default"), rows)
        return
    width = max(map(len, methods.names())) + 2
    print("Beside features every method gives an anomaly score by the density of the training images' embeddings.\n")
    for found in methods.names():
        text, posterior, samples, scores = methods.offers(methods.get(found)).values()
        gives = ["posterior"] * (posterior == "yes") + ["samples"] * (samples == "yes") + [f"scores: {scores}"]
        line = f"{found:{width}}{text.partition(': ')[2] or text} [{'; '.join(gives)}]"
        print(textwrap.fill(line, shutil.get_terminal_size().columns, subsequent_indent=" " * width))
    print("\njointembed methods NAME shows a method's options")


def _per_cent(share: float) -> str:
    return f"{100 * share:.3g} %"
