"""A loss of jointembed in a loop of your own: LeJEPA on the digits that come with scikit-learn, in plain PyTorch.

python examples/plain_pytorch.py
"""

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from jointembed.methods.lejepa import lejepa_loss
from jointembed.normality import SIGReg


def two_views(images: Tensor) -> list[Tensor]:
    """What does not matter: how a digit is slanted, scaled and placed, and how bright it is."""
    views = []
    for _ in range(2):
        still = torch.eye(2, 3).repeat(len(images), 1, 1)
        moved = still + torch.cat([0.2 * torch.randn(len(images), 2, 2), 0.15 * torch.randn(len(images), 2, 1)], 2)
        grid = nn.functional.affine_grid(moved, list(images.shape), align_corners=False)
        bright = 0.7 + 0.6 * torch.rand(len(images), 1, 1, 1)
        views.append(bright * nn.functional.grid_sample(images, grid, align_corners=False))
    return views


def knn(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    judge = KNeighborsClassifier(1).fit(train.flatten(1), train_labels)
    return float(judge.score(test.flatten(1), test_labels))


def main(steps: int = 150, labelled: int = 50) -> dict[str, float]:
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(labels)
    train, test = slice(0, 1300), slice(1300, None)

    encoder = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Flatten(),
    )  # fmt: skip
    projector = nn.Sequential(nn.Linear(256, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 16))
    sigreg = SIGReg(num_slices=64)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *projector.parameters()], lr=2e-3)

    def evaluate() -> float:
        """1-NN accuracy on images never seen, with few labels: where features must do the work."""
        encoder.eval()
        with torch.no_grad():
            z = encoder(images)
        encoder.train()
        return knn(z[train][:labelled], labels[train][:labelled], z[test], labels[test])

    before = evaluate()
    for _ in range(steps):
        batch = images[train][torch.randint(1300, (128,))]
        z = torch.stack([projector(encoder(view)) for view in two_views(batch)])  # (V, N, D)
        terms = lejepa_loss(z, num_global=2, sigreg=sigreg, weight=0.02)
        optimizer.zero_grad()
        terms["loss"].backward()
        optimizer.step()

    raw = knn(images[train][:labelled], labels[train][:labelled], images[test], labels[test])
    found = {"pixels": raw, "untrained": before, "trained": evaluate()}
    words = ", ".join(f"{name} {100 * value:.1f} %" for name, value in found.items())
    print(f"1-NN with {labelled} labels: {words}")
    return found


if __name__ == "__main__":
    main()
