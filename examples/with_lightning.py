"""A loss of jointembed in a Lightning module of your own: VJE on the digits that come with scikit-learn.

python examples/with_lightning.py
"""

import logging
import warnings

import lightning as L
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from jointembed.distributions import PolarStudentT
from jointembed.methods.vje import InferenceNetwork, vje_loss


class Variational(L.LightningModule):
    """An encoder whose embeddings have posteriors. One view's posterior must explain the other view's embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 32))
        self.inference = InferenceNetwork(32)

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        (x,) = batch
        z1, z2 = (self.encoder(x * (0.8 + 0.4 * torch.rand(len(x), 1)) + 0.15 * torch.randn_like(x)) for _ in range(2))
        terms = vje_loss(z1, z2, self.inference(z1), self.inference(z2), df=3.0)
        self.log_dict(terms)
        return terms["loss"]

    def on_fit_start(self) -> None:
        self.train()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)

    @torch.no_grad()
    def strangeness(self, x: Tensor) -> Tensor:
        """Minus the log-likelihood of each embedding under its own posterior."""
        z = self.encoder(x)
        posterior = self.inference(z)
        return -PolarStudentT(posterior.mean, posterior.variance, df=3.0).log_prob(z)


def main(epochs: int = 20) -> dict[str, float]:
    L.seed_everything(0, verbose=False)
    pixels, _ = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32) / 16
    train, test = images[:1300], images[1300:]
    # Strange images: the pixels of real ones, shuffled. Each pixel is as it was; nothing is where it belongs.
    strange = test[:, torch.randperm(64)]

    module = Variational()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = L.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, **quiet)
    loader = DataLoader(TensorDataset(train), batch_size=128, shuffle=True, drop_last=True)

    def auroc() -> float:
        """How well the score tells strange images from digits never seen: 0.5 is chance."""
        module.eval()
        scores = torch.cat([module.strangeness(test), module.strangeness(strange)])
        return float(roc_auc_score([0] * len(test) + [1] * len(strange), scores))

    before = auroc()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice to larger trainings
        trainer.fit(module, loader)
    found = {"untrained": before, "trained": auroc()}
    print("AUROC of strange images:", ", ".join(f"{name} {value:.3f}" for name, value in found.items()))
    return found


if __name__ == "__main__":
    main()
