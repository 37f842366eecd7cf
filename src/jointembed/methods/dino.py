"""DINO: self-distillation with no labels (Caron et al., 2021, arXiv 2104.14294).

Student and teacher sort images into K kinds nobody has named. The student, from any view, predicts what the teacher, a
slow copy of it, says of another, global one. A moving centre keeps the teacher from calling everything the same, a low
temperature from calling everything everything.

    >>> student, teacher = torch.randn(4, 128, 1024), torch.randn(2, 128, 1024)  # (V, N, K), four views and two
    >>> terms = dino_loss(student.requires_grad_(), teacher, centre=teacher.mean((0, 1)))
    >>> terms["loss"].backward()
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointembed._distributed import mean_over_ranks

from .base import Method, at_least_float32, encode_views, feature_dim
from .stacks import average, check_above_zero, check_counts, check_not_negative, check_targets, directed_pairs
from .swav import cross_entropy
from .teacher import Teacher, check_decay, cosine, linear


def dino_loss(
    predictions: Tensor,
    targets: Tensor,
    centre: Tensor,
    student_temperature: float = 0.1,
    teacher_temperature: float = 0.07,
) -> dict[str, Tensor]:
    """Cross-entropy of the student with the centred, sharpened teacher (the paper's Eq. 3 and Algorithm 1).

    It is the teacher's "entropy" plus the "kl" divergence of the student: of a collapsed teacher the former is 0, or
    log K, and the latter 0.

    Args:
        predictions: the student's outputs for V views, (V, N, K), the global views first.
        targets: the teacher's outputs for the first G of these views, (G, N, K); the gradient does not pass.
        centre: (K,), subtracted from the teacher's outputs.
        student_temperature: of the student's softmax.
        teacher_temperature: of the teacher's.
    """
    check_targets(predictions, targets)
    if centre.shape != targets.shape[2:]:
        raise ValueError(f"centre: expected shape ({targets.shape[2]},) as targets have, got {tuple(centre.shape)}")
    check_above_zero(student_temperature=student_temperature, teacher_temperature=teacher_temperature)
    targets = at_least_float32(targets.detach())
    log_teacher = ((targets - centre.detach().to(targets)) / teacher_temperature).log_softmax(-1)
    log_student = (at_least_float32(predictions) / student_temperature).log_softmax(-1)
    pairs = directed_pairs(len(log_student), len(log_teacher))
    return average([cross_entropy(log_teacher[j], log_student[i]) for i, j in pairs], predictions.shape[1])


class NormalisedLinear(nn.Module):
    """Cosines of (N, D) with K directions: a weight-normalised linear layer whose norms stay 1, of a unit input."""

    def __init__(self, dim: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, dim))

    def forward(self, z: Tensor) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):  # a small temperature magnifies errors
            return F.normalize(at_least_float32(z), dim=-1) @ F.normalize(self.weight, dim=-1).mT


def dino_projector(features: int, width: int, dim: int, batch_norm: bool) -> nn.Sequential:
    """Three layers with GELU between them, and the authors' initial weights."""
    layers: list[nn.Module] = []
    for a, b in pairwise((features, width, width)):
        layers += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if batch_norm else []), nn.GELU()]
    layers.append(nn.Linear(width, dim))
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class DINO(Method, name="dino"):
    """DINO: self-distillation, a student matches the sharpened and centred output of its slow copy.

    The features are the student backbone's (the paper evaluates the teacher's).

    Projector space is the unit sphere in front of the last layer. The paper's schedule of the weight decay and its
    clipping of gradients are the trainer's, and off by default.

    Args:
        backbone: network with `num_features`, images to (N, D).
        prototypes: K, outputs of the last layer; the paper has 65536.
        student_temperature: of the student.
        teacher_temperature: of the teacher, after the warm-up.
        initial_temperature: of the teacher, from which it rises linearly.
        temperature_epochs: length of that warm-up.
        centre_momentum: decay of the centre.
        ema: decay of the teacher's weights at the start.
        ema_end: to which it rises along a cosine until the end.
        freeze_epochs: so long the student's last layer stays as it is.
        dim: dimension of the projections, the bottleneck in front of the last layer.
        projector_width: width of the projector's hidden layers; the paper has 2048.
        batch_norm: BatchNorm in the projector, an option of the authors' code for networks that have it themselves.
    """

    spaces = ("backbone", "projector")
    density_space = "projector"
    preset = "dino"

    centre: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        prototypes: int = 1024,
        student_temperature: float = 0.1,
        teacher_temperature: float = 0.07,
        initial_temperature: float = 0.04,
        temperature_epochs: float = 30.0,
        centre_momentum: float = 0.9,
        ema: float = 0.996,
        ema_end: float = 1.0,
        freeze_epochs: float = 1.0,
        dim: int = 256,
        projector_width: int = 512,
        batch_norm: bool = False,
    ) -> None:
        check_above_zero(
            student_temperature=student_temperature,
            teacher_temperature=teacher_temperature,
            initial_temperature=initial_temperature,
        )
        check_decay(centre_momentum=centre_momentum, ema=ema, ema_end=ema_end)
        check_not_negative(temperature_epochs=temperature_epochs, freeze_epochs=freeze_epochs)
        check_counts(prototypes=prototypes, dim=dim, projector_width=projector_width)
        super().__init__(backbone, density_dim=dim)
        self.projector = dino_projector(feature_dim(backbone), projector_width, dim, batch_norm)
        self.last = NormalisedLinear(dim, prototypes)
        self.teacher = Teacher(nn.Sequential(backbone, self.projector, self.last))
        self.register_buffer("centre", torch.zeros(prototypes))
        self.student_temperature, self.teacher_temperature = student_temperature, teacher_temperature
        self.initial_temperature, self.temperature_epochs = initial_temperature, temperature_epochs
        self.centre_momentum, self.ema, self.ema_end = centre_momentum, ema, ema_end
        self.freeze_epochs = freeze_epochs

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        predictions = encode_views(nn.Sequential(self.backbone, self.projector, self.last), views)  # (V, N, K)
        with torch.no_grad():
            targets = encode_views(self.teacher, views[:num_global])  # (G, N, K)
        terms = dino_loss(predictions, targets, self.centre, self.student_temperature, self.temperature())
        if self.training:  # after the loss: this batch is centred by those before it
            self.centre.lerp_(mean_over_ranks(targets.mean((0, 1)), targets.shape[1]), 1 - self.centre_momentum)
        return terms

    def temperature(self) -> float:
        """Of the teacher, now."""
        done = min(self.clock.epoch / self.temperature_epochs, 1.0) if self.temperature_epochs else 1.0
        return linear(self.initial_temperature, self.teacher_temperature, done)

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        return {"backbone": h, "projector": F.normalize(at_least_float32(self.projector(h)), dim=-1)}

    def before_step(self) -> None:
        if self.clock.epoch < self.freeze_epochs:
            self.last.weight.grad = None

    def after_step(self) -> None:
        decay = cosine(self.ema, self.ema_end, self.clock.share)
        self.teacher.follow(nn.Sequential(self.backbone, self.projector, self.last), decay)
