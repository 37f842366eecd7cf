"""What VJE adds to its backbone: in a training step, and when scoring images. Both sides in one run.

    python -m benchmarks.vje

The step: inference network and loss, forward and backward, on the embeddings of two views of 256 images, against
forward and backward of ResNet-18 on these views (32 x 32, CIFAR stem). Scoring: `model.anomaly_score` from uint8 images
to numbers, against the bare network on images that are already normalised.
"""

import argparse
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch

import jointembed as je
from jointembed.backbones import create_backbone
from jointembed.methods.vje import InferenceNetwork, vje_loss

BATCH = 256


def best(function: Callable[[], object], repeats: int) -> float:
    """Seconds, the minimum of several after one to warm up."""
    function()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def step(name: str, repeats: int) -> tuple[float, float]:
    """Seconds of the backbone's part of a step, and of the head's."""
    backbone = create_backbone(name).to(memory_format=torch.channels_last)
    views = torch.randn(2 * BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    network = InferenceNetwork(backbone.num_features)
    z = torch.randn(2, BATCH, backbone.num_features, requires_grad=True)

    def head() -> None:
        posteriors = [network(one) for one in z]
        vje_loss(*z, *posteriors)["loss"].backward()

    return best(lambda: backbone(views).sum().backward(), repeats), best(head, 5 * repeats)


def scoring(name: str, count: int, repeats: int) -> tuple[float, float]:
    """Seconds of the bare network over the images, and of scoring them."""
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    with TemporaryDirectory() as folder:
        model = je.train(
            images[:BATCH], "vje", name, epochs=1, out=folder, hold_out=0, view_size=8, progress=False, batch_size=64
        )
    ready = [x.contiguous(memory_format=torch.channels_last) for x in torch.randn(count, 3, 32, 32).split(BATCH)]

    def bare() -> None:
        with torch.inference_mode():
            for batch in ready:
                model.method.backbone(batch)

    return best(bare, repeats), best(lambda: model.anomaly_score(images), repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=int, default=10_000, help="to score")
    arguments = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    backbone, head = step("resnet18", arguments.repeats)
    print(f"step, ResNet-18, batch {BATCH}: backbone {backbone:.2f} s, head {head * 1e3:.1f} ms: {head / backbone:.2%}")
    for name in ("resnet10-narrow", "resnet18"):
        count = arguments.images if name != "resnet18" else arguments.images // 5
        bare, whole = scoring(name, count, arguments.repeats)
        extra = whole / bare - 1
        print(f"scoring {count:,} images, {name}: network {bare:.2f} s, anomaly_score {whole:.2f} s: {extra:+.1%}")


if __name__ == "__main__":
    main()
