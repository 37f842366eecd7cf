"""Not images: time series of several channels, in regimes nobody has labelled.

Imagine a machine with four sensors. In each of six regimes the sensors lag behind each other, and ring, in their own
way. How fast the machine runs, how loud each sensor is, drift and noise differ from recording to recording and mean
nothing. The views say so: two windows of one recording, each stretched in time and each sensor at its own loudness.
What they share is what matters, and LeJEPA's loss on a small 1-D convolutional encoder finds it.

python examples/time_series.py
"""

import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from jointembed.methods.lejepa import lejepa_loss
from jointembed.normality import SIGReg

CHANNELS, LENGTH, WINDOW, REGIMES = 4, 192, 64, 6


def recordings(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Signals (N, channels, time) and the regime of each (N,)."""
    rules = torch.Generator().manual_seed(0)  # the regimes are what they are, whoever records them
    lag = 6.3 * torch.rand(REGIMES, CHANNELS, 1, generator=rules)
    share = torch.rand(REGIMES, CHANNELS, 1, generator=rules)  # of the overtone, in each channel

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=generator)

    regime = torch.randint(REGIMES, (count,), generator=generator)
    time = torch.linspace(0, LENGTH / WINDOW, LENGTH)
    swing = 6.283 * uniform(3, 6, 1, 1) * time + lag[regime] + uniform(0, 6.283, 1, 1)
    signal = (1 - share[regime]) * swing.sin() + share[regime] * (2 * swing + lag[regime]).sin()
    noise = 0.3 * torch.randn(count, CHANNELS, LENGTH, generator=generator)
    return uniform(0.5, 1.5, CHANNELS, 1) * signal + uniform(-1, 1, CHANNELS, 1) * time + noise, regime


def whole(signals: Tensor) -> Tensor:
    """The window in the middle of each recording, less its mean: what there is to recognise."""
    start = (LENGTH - WINDOW) // 2
    window = signals[:, :, start : start + WINDOW]
    return window - window.mean(-1, keepdim=True)


def view(signals: Tensor) -> Tensor:
    """A window from anywhere, at another speed and other loudnesses."""
    length = WINDOW * (0.75 + 0.6 * torch.rand(len(signals), 1))
    start = torch.rand(len(signals), 1) * (LENGTH - 1 - length)
    at = start + length * torch.linspace(0, 1, WINDOW)  # (N, window), between two samples
    before = at.long()[:, None].expand(-1, CHANNELS, -1)
    weight = (at - at.floor())[:, None]
    window = signals.gather(2, before) * (1 - weight) + signals.gather(2, before + 1) * weight
    window = window - window.mean(-1, keepdim=True)
    return (0.5 + torch.rand(len(signals), CHANNELS, 1)) * window


def encoder() -> nn.Module:
    """(N, channels, time) to (N, 64): convolutions, then the mean over time, which forgets the phase."""
    layers: list[nn.Module] = []
    for a, b in ((CHANNELS, 32), (32, 32), (32, 64)):
        layers += [nn.Conv1d(a, b, 7, stride=2, padding=3), nn.BatchNorm1d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten())


def main(steps: int = 150, labelled: int = 60) -> dict[str, float]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    train, train_regimes = recordings(2000, generator)
    test, test_regimes = recordings(600, generator)
    network = encoder()
    projector = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 16))
    sigreg = SIGReg(num_slices=64)
    optimizer = torch.optim.AdamW([*network.parameters(), *projector.parameters()], lr=2e-3)

    def knn(features) -> float:
        """5-NN accuracy: the regimes of 60 recordings are told, those of 600 new ones asked for."""
        with torch.no_grad():
            known, new = features(whole(train[:labelled])), features(whole(test))
        judge = KNeighborsClassifier(5).fit(known, train_regimes[:labelled])
        return float(judge.score(new, test_regimes))

    found = {
        "raw windows": knn(lambda x: x.flatten(1)),
        "power spectra": knn(lambda x: torch.fft.rfft(x).abs().flatten(1)),
        "untrained": knn(network.eval()),
    }
    network.train()
    for _ in range(steps):
        batch = train[torch.randint(len(train), (128,))]
        z = torch.stack([projector(network(view(batch))) for _ in range(2)])  # (V, N, D)
        terms = lejepa_loss(z, num_global=2, sigreg=sigreg, weight=0.02)
        optimizer.zero_grad()
        terms["loss"].backward()
        optimizer.step()
    found["trained"] = knn(network.eval())
    words = ", ".join(f"{name} {100 * value:.1f} %" for name, value in found.items())
    print(f"5-NN with {labelled} labels, {REGIMES} regimes: {words}")
    return found


if __name__ == "__main__":
    main()
