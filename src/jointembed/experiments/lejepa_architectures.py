"""LeJEPA, Figure 9: many architectures, one command, nothing changed between them."""

import time
from pathlib import Path
from typing import Any

import torch

from jointembed._files import atomic
from jointembed.model import Model
from jointembed.training import Diverged

from .cells import run_cells, spent
from .results import command, write_results
from .small import accuracies, parts, rounded, trained

LARGEST = 5.0  # million parameters, without a classifier
FAMILIES: dict[str, tuple[str, ...]] = {
    "ResNet": ("resnet10t",),
    "RegNet": ("regnetx_002", "regnety_002"),
    "DLA": ("dla46_c",),
    "ShuffleNet": ("shufflenet_v2_x0_5",),
    "ConvNeXt": ("convnext_zepto_rms", "convnext_atto"),
    "MobileNet": ("mobilenetv2_050", "mobilenetv3_small_100", "mobilenetv4_conv_small"),
    "EfficientNet": ("tinynet_e",),
    "MnasNet": ("mnasnet_small",),
    "LCNet": ("lcnet_050", "lcnet_100"),
    "GhostNet": ("ghostnet_050", "repghostnet_050"),
    "HGNet": ("hgnetv2_b0",),
    "FasterNet": ("fasternet_t0",),
    "StarNet": ("starnet_s1",),
    "MobileViT": ("mobilevit_xxs",),
    "EdgeNeXt": ("edgenext_xx_small",),
    "EfficientViT": ("efficientvit_b0", "efficientvit_m0"),
    "PVT": ("pvt_v2_b0",),
    "XCiT": ("xcit_nano_12_p16_224",),
    "SwiftFormer": ("swiftformer_xs",),
    "ViT": ("test_vit",),  # the smallest in timm; the next one has 5.5 M
    "PiT": ("pit_ti_224",),
    "gMLP": ("gmlp_ti16_224",),
}
NAMES = tuple(name for names in FAMILIES.values() for name in names)
PAPER = "91.5 to 95"  # ImageNet-10, about 50 networks of 8 families, learning rate and weight decay searched for each


def run(
    data: str = "cifar10.npz",
    results: str = "results",
    images: int = 3_000,
    epochs: int = 6,
    size: int = 64,
    names: tuple[str, ...] = NAMES,
    kept: str = "results/lejepa-architectures-rows.json",
    jobs: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Train every network on a part of CIFAR-10 with the same arguments; its features beside those it began with.

    Most of these networks shrink an image 32 times: images are enlarged, so that something is left to pool. All are
    trained in float32: on a CPU bf16 halves the speed of those built from depthwise convolutions. Batches are small for
    the sake of the number of steps, which is still too low for some: with `--names` and `--epochs` they get more.

    Args:
        data: CIFAR-10 as an .npz, or its name.
        results: where the table and the figure go.
        images: training images.
        epochs: passes over them.
        size: side of images and views.
        names: of networks, by timm's names or those of the small ones here.
        kept: where finished trainings are remembered.
        jobs: trainings beside each other; by default one per core.
        changes: arguments of `jointembed.train` to change.
    """
    arguments, began = dict(locals()), time.perf_counter()
    shared: dict[str, Any] = {"data": data, "images": images, "epochs": epochs, "image_size": size, "view_size": size}
    shared |= {"batch_size": 32, "num_slices": 256, "precision": "32-true", "seed": 0, **(changes or {})}
    cells = [shared | {"backbone": name} for name in names]
    found = dict(zip(names, run_cells(architecture_cell, cells, Path(kept), jobs), strict=True))
    rows = [row(name, ours) for name, ours in found.items()]
    title = (
        f"LeJEPA on {sum('failed' not in ours for ours in found.values())} of {len(names)} networks below "
        f"{LARGEST:g} M parameters: {images:,} images of CIFAR-10 at {size} px, {epochs} epochs, no setting changed "
        f"(paper, linear: {PAPER} % of ImageNet-10)"
    )
    seconds = spent(began, found.values(), jobs)
    write_results(Path(results), "lejepa-architectures", title, rows, command(run, arguments), seconds)
    draw(found, Path(results) / "lejepa-architectures.png")


def architecture_cell(data: str, images: int, **training: Any) -> dict[str, Any]:
    """Accuracy before and after; of a network that cannot be built or trained, the reason."""
    source, test = parts(data, images, held_out=False)
    began = time.perf_counter()
    try:
        model, _ = trained(source, "lejepa", **training)
    except (Diverged, ValueError, RuntimeError, TypeError, AssertionError) as error:  # whatever timm's networks raise
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    minutes = (time.perf_counter() - began) / 60
    parameters = sum(p.numel() for p in model.method.backbone.parameters()) / 1e6
    before = accuracies(untrained(model, training["seed"]), source, test)
    return {"parameters": parameters, "minutes": minutes, "before": before, "after": accuracies(model, source, test)}


def untrained(model: Model, seed: int) -> Model:
    """The model as it was before its first step, if `seed` is that of its training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model.config.build()


def family_of(name: str) -> str:
    """A dash for a network that is not in the list."""
    return next((family for family, names in FAMILIES.items() if name in names), "-")


def row(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """One network; a failure takes the place of the minutes."""
    before, after = found.get("before", {}), found.get("after", {})
    gain = after["linear"] - before["linear"] if after else None
    return {
        "network": name,
        "family": family_of(name),
        "M parameters": rounded(found.get("parameters"), 2),
        "k-NN %, untrained": rounded(before.get("knn"), 1),
        "k-NN %": rounded(after.get("knn"), 1),
        "linear %, untrained": rounded(before.get("linear"), 1),
        "linear %": rounded(after.get("linear"), 1),
        "linear, gain": "-" if gain is None else f"{gain:+.1f}",
        "minutes": found.get("failed") or rounded(found["minutes"], 1),
    }


def draw(found: dict[str, dict[str, Any]], path: Path) -> None:
    """A line per network from its untrained to its trained accuracy, the best on top; k-NN and linear side by side."""
    from matplotlib.figure import Figure

    done = sorted((name for name in found if "after" in found[name]), key=lambda name: found[name]["after"]["linear"])
    figure = Figure(figsize=(11, 1.6 + 0.24 * len(done)), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, measure, title in zip(axes, ("linear", "knn"), ("linear accuracy, %", "k-NN accuracy, %"), strict=True):
        before, after = ([found[name][when][measure] for name in done] for when in ("before", "after"))
        at = range(len(done))
        axis.hlines(at, before, after, color="lightgrey", linewidth=3, zorder=1)
        axis.scatter(before, at, s=26, color="white", edgecolor="C7", zorder=2, label="untrained")
        axis.scatter(after, at, s=26, color="C0", zorder=3, label="trained")
        axis.set(title=title, ylim=(-0.7, len(done) - 0.3))
        axis.grid(axis="x", alpha=0.3)
    labels = [f"{name}  ({family_of(name)}, {found[name]['parameters']:.1f} M)" for name in done]
    axes[0].set_yticks(range(len(done)), labels, fontsize=8)
    handles, texts = axes[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=2, frameon=False)
    with atomic(path) as target:
        figure.savefig(target, dpi=110)
