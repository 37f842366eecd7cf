"""A loss of jointembed in lightly's pipeline: its transform and its data set, our LeJEPA in place of its losses.

python examples/with_lightly.py     # needs lightly: pip install lightly
"""

import importlib.util
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn
from torch.utils.data import DataLoader

from jointembed.methods.lejepa import lejepa_loss
from jointembed.normality import SIGReg

SIDE = 16


def write_digits(folder: Path, count: int) -> tuple[Tensor, Tensor]:
    """The first digits of scikit-learn as image files, as lightly reads them; and all of them as tensors."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    images = nn.functional.interpolate(images, SIDE, mode="bilinear").repeat(1, 3, 1, 1)
    for i, image in enumerate(images[:count]):
        Image.fromarray((255 * image).byte().permute(1, 2, 0).numpy()).save(folder / f"{i:04}.png")
    return images, torch.tensor(labels)


def main(epochs: int = 8, count: int = 1024, labelled: int = 50) -> dict[str, float]:
    from lightly.data import LightlyDataset
    from lightly.transforms import SimCLRTransform

    torch.manual_seed(0)
    encoder = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Flatten(),
    )  # fmt: skip
    projector = nn.Sequential(nn.Linear(256, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 16))
    sigreg = SIGReg(num_slices=64)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *projector.parameters()], lr=2e-3)
    with tempfile.TemporaryDirectory() as folder:
        images, labels = write_digits(Path(folder), count)
        # Digits must not be mirrored and have no colours, but may be slanted.
        transform = SimCLRTransform(
            input_size=SIDE,
            cj_prob=0.0,
            random_gray_scale=0.0,
            hf_prob=0.0,
            gaussian_blur=0.0,
            min_scale=0.7,
            rr_prob=0.8,
            rr_degrees=20.0,
            normalize=None,
        )
        loader = DataLoader(LightlyDataset(folder, transform=transform), batch_size=128, shuffle=True, drop_last=True)

        def evaluate(features) -> float:
            """1-NN accuracy on images never seen, with few labels."""
            with torch.no_grad():
                z = features(images).flatten(1)
            judge = KNeighborsClassifier(1).fit(z[:labelled], labels[:labelled])
            return float(judge.score(z[count:], labels[count:]))

        found = {"pixels": evaluate(nn.Identity()), "untrained": evaluate(encoder.eval())}
        encoder.train()
        for _ in range(epochs):
            for views, _, _ in loader:
                z = torch.stack([projector(encoder(view)) for view in views])  # (V, N, D)
                terms = lejepa_loss(z, num_global=2, sigreg=sigreg, weight=0.02)
                optimizer.zero_grad()
                terms["loss"].backward()
                optimizer.step()
        found["trained"] = evaluate(encoder.eval())
    words = ", ".join(f"{name} {100 * value:.1f} %" for name, value in found.items())
    print(f"1-NN with {labelled} labels: {words}")
    return found


if __name__ == "__main__":
    if importlib.util.find_spec("lightly") is None:
        sys.exit("with_lightly.py: skipped, lightly is not installed: pip install lightly")
    main()
