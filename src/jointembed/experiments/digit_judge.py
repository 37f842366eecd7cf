"""What a classifier of digits says of pictures that claim to be digits."""

import math
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from jointembed.backbones import create_backbone
from jointembed.data import Source
from jointembed.evaluation.linear import fit_quietly
from jointembed.metrics import frechet_distance

CONFIDENT = 0.9  # the classifier's probability of its class


def pixels_of(source: Source) -> Tensor:
    """All images of a source, (N, C, H, W)."""
    pixels = source.batch(range(len(source)))
    assert isinstance(pixels, Tensor)
    return pixels


class Judge:
    """A classifier of digits, trained on labels that no encoder saw, and what it says of pictures."""

    epochs = 5

    def __init__(self, source: Source, test: Source, seed: int) -> None:
        assert source.labels is not None and test.labels is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.fit = _Classifier(create_backbone("conv4", 1, 32))
            loader = DataLoader(TensorDataset(pixels_of(source), source.labels), 128, shuffle=True)
            fit_quietly(self.fit, loader, self.epochs, torch.device("cpu"))
        self.reference, scores = self.look(pixels_of(test))
        self.accuracy = float((scores.argmax(1) == test.labels).float().mean())

    @torch.inference_mode()
    def look(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Features (N, 512) and probabilities (N, 10) of uint8 pictures."""
        self.fit.eval()
        features = torch.cat([self.fit.backbone(part.float() / 255) for part in pictures.split(1000)])
        return features, self.fit.head(features).softmax(1)

    def row(self, family: str, how: str, pictures: Tensor) -> dict[str, Any]:
        """The share it is sure of, how evenly it sees all digits (1 is perfectly), and the Fréchet distance."""
        features, scores = self.look(pictures)
        counts = scores.argmax(1).bincount(minlength=10) / len(scores)
        return {
            "family": family,
            "drawn from": how,
            f"sure (> {CONFIDENT}) %": round(100 * float((scores.amax(1) > CONFIDENT).float().mean()), 1),
            "coverage": round(float(torch.distributions.Categorical(counts).entropy()) / math.log(10), 3),
            "Fréchet": round(frechet_distance(features, self.reference), 1),
        }


class _Classifier(L.LightningModule):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(512, 10)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        pictures, labels = batch
        return nn.functional.cross_entropy(self.head(self.backbone(pictures.float() / 255)), labels)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), weight_decay=0.05)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
