"""Covariance matrices held by a square root: a Cholesky factor, or standard deviations. The algebra of `mixture.py`.

A root stands for K matrices, or for one that all components share: its dimension K is then 1. Roots are never expanded;
a batch dimension that the root does not have becomes more rows of one product or solve, not more copies of the root.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def product(equation: str, *tensors: Tensor) -> Tensor:
    """`torch.einsum` in the precision of its tensors, under autocast too."""
    with torch.autocast(tensors[0].device.type, enabled=False):
        return torch.einsum(equation, *tensors)


def double(x: Tensor) -> Tensor:
    """In double precision, where the device has it."""
    return x if x.device.type == "mps" else x.double()


@dataclass
class Triangular:
    """Full matrices S = L L^T, held by L (..., K|1, D, D)."""

    factor: Tensor

    @classmethod
    def from_factor(cls, factor: Tensor, validate: bool) -> Triangular:
        if validate and bool(factor.triu(1).any()):
            raise ValueError("scale_tril: expected lower triangular matrices, got values above the diagonal")
        diagonal = factor.diagonal(dim1=-2, dim2=-1)
        if validate and not bool((diagonal > 0).all()):
            raise ValueError(f"scale_tril: expected a diagonal above 0, got {diagonal.min().item():g}")
        return cls(factor)

    @classmethod
    def from_covariances(cls, covariances: Tensor, tolerance: float, validate: bool) -> Triangular:
        if validate:
            asymmetry = (covariances - covariances.mT).abs().amax((-2, -1))
            if not bool((asymmetry <= tolerance * covariances.abs().amax((-2, -1))).all()):
                worst = asymmetry.max().item()
                raise ValueError(f"covariances: expected symmetric matrices, got values that differ by {worst:g}")
        # In double: Cholesky loses as many digits as S's condition number has, while L's has half as many. So L rounded
        # to single is good for condition numbers at which a factorisation in single is not.
        factor, failed = torch.linalg.cholesky_ex(double(covariances), check_errors=not validate)
        if validate and bool(failed.any()):
            least = torch.linalg.eigvalsh(double(covariances.detach())).min().item()
            raise ValueError(f"covariances: expected positive definite matrices, got an eigenvalue of {least:g}")
        return cls(factor.to(covariances))

    @property
    def batch(self) -> torch.Size:
        return self.factor.shape[:-2]  # (..., K|1), as that of the other root

    def common(self) -> tuple[Triangular, Tensor | None] | None:
        """What whitens all components alike, and the factors (..., K) it leaves in their squares, if there is such."""
        return (self, None) if self.batch[-1] == 1 else None

    def double(self) -> Triangular:
        return Triangular(double(self.factor))

    def half_log_det(self) -> Tensor:
        """1/2 log|S|, (..., K|1)."""
        return self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def dense(self) -> Tensor:
        """The root as a matrix, (..., K|1, D, D)."""
        return self.factor

    def matrices(self) -> Tensor:
        """S, (..., K|1, D, D)."""
        return product("...ij,...kj->...ik", self.factor, self.factor)

    def variances(self) -> Tensor:
        """The diagonal of S, (..., K|1, D)."""
        return self.factor.square().sum(-1)

    def average(self, weights: Tensor) -> Tensor:
        """sum_k weights_k S_k, (..., D, D)."""
        matrices = self.matrices()
        return matrices[..., 0, :, :] if self.batch[-1] == 1 else product("...k,...kij->...ij", weights, matrices)

    def whiten(self, x: Tensor) -> Tensor:
        """L^-1 x for x (..., K|1, D). Dimensions along which L is constant become the rows of one solve."""
        dim, shape = x.shape[-1], torch.broadcast_shapes(x.shape[:-1], self.batch)
        sizes = (1,) * (len(shape) - len(self.batch)) + self.batch
        varying = [i for i, size in enumerate(sizes) if size != 1]
        constant = [i for i, size in enumerate(sizes) if size == 1]
        order = varying + constant
        x = x.expand(*shape, dim).permute(*order, -1)
        rows = x.reshape(*(shape[i] for i in varying), math.prod(shape[i] for i in constant), dim)
        factor = self.factor.reshape(*(shape[i] for i in varying), dim, dim)
        white = torch.linalg.solve_triangular(factor.mT, rows, upper=True, left=False)
        return white.reshape(x.shape).permute(*(order.index(i) for i in range(len(order))), -1)

    def spread(self, noise: Tensor, component: Tensor) -> Tensor:
        """L_k e for noise e (..., D) and its component k (...), sorted by matrix so that no matrix is copied."""
        which = flat_index(self.batch, component).flatten()
        order = which.argsort()
        factors = self.factor.flatten(0, -3)
        groups = noise.reshape(-1, noise.shape[-1])[order].split(which.bincount(minlength=len(factors)).tolist())
        parts = [product("nj,ij->ni", rows, factor) for rows, factor in zip(groups, factors.unbind(), strict=True)]
        return torch.cat(parts)[order.argsort()].reshape(noise.shape)

    def marginal(self, indices: Sequence[int]) -> Triangular:
        """The root of S with these rows and columns, in their order."""
        count = len(indices)
        if list(indices) == list(range(count)):
            return Triangular(self.factor[..., :count, :count])
        rows = double(self.factor[..., indices, :])
        return Triangular(torch.linalg.cholesky(product("...ij,...kj->...ik", rows, rows)).to(self.factor))

    def split(self, given: Sequence[int], rest: Sequence[int]) -> tuple[Triangular, Tensor | None, Triangular]:
        """The roots of S_gg and of the Schur complement S_rr - S_rg S_gg^-1 S_gr, and between them L_rg = S_rg L_gg^-T.

        All three are blocks of the factor of S with `given` first.
        """
        factor, count = self.marginal([*given, *rest]).factor, len(given)
        below = factor[..., count:, :]
        return Triangular(factor[..., :count, :count]), below[..., :count], Triangular(below[..., count:])

    def regress(self, cross: Tensor, x: Tensor, means: Tensor) -> Tensor:
        """The shift of the rest, L_rg L_gg^-1 (x - mean_k), (..., K, R), for x (..., G) and means (..., K, G)."""
        x = x[..., None, :]
        if self.batch[-1] > 1:
            return product("...ij,...j->...i", cross, self.whiten(x - means))
        # Linear, so once per x and once per mean instead of once per pair; in double, as the two may be large and near.
        root, slope = self.double(), double(cross)
        of_x, of_means = (product("...ij,...j->...i", slope, root.whiten(double(each))) for each in (x, means))
        return (of_x - of_means).to(x)

    def scaled(self, scale: Tensor) -> Triangular:
        """The root of S with rows and columns multiplied by `scale` (D,)."""
        return Triangular(self.factor * scale[:, None])

    def trace_ratio(self, other: Root) -> Tensor:
        """Tr(S^-1 T), (...), for the matrix T = R R^T of another root, both with K = 1: the squares in L^-1 R."""
        columns = other.dense()[..., 0, :, :].mT
        return self.whiten(columns).square().sum((-1, -2))


@dataclass
class Diagonal:
    """Diagonal matrices held by standard deviations (..., K|1, D), or isotropic ones by (..., K|1, 1)."""

    root: Tensor
    dim: int

    @classmethod
    def from_variances(cls, variances: Tensor, dim: int, validate: bool) -> Diagonal:
        if validate and not bool((variances > 0).all()):
            raise ValueError(f"variances: expected values above 0, got {variances.min().item():g}")
        return cls(variances.sqrt(), dim)

    @property
    def batch(self) -> torch.Size:
        return self.root.shape[:-1]

    def common(self) -> tuple[Diagonal, Tensor | None] | None:
        if self.batch[-1] == 1:
            return self, None
        if self.root.shape[-1] > 1:
            return None
        smallest = self.root.detach().amin(-2, keepdim=True)
        return Diagonal(smallest, self.dim), (self.root / smallest).square()[..., 0]

    def double(self) -> Diagonal:
        return Diagonal(double(self.root), self.dim)

    def half_log_det(self) -> Tensor:
        return self.dim * self.root.log().mean(-1)

    def dense(self) -> Tensor:
        return self.root.expand(*self.batch, self.dim).diag_embed()

    def matrices(self) -> Tensor:
        return self.variances().diag_embed()

    def variances(self) -> Tensor:
        return self.root.square().expand(*self.batch, self.dim)

    def average(self, weights: Tensor) -> Tensor:
        variances = self.variances()
        shared = self.batch[-1] == 1
        return (variances[..., 0, :] if shared else product("...k,...kd->...d", weights, variances)).diag_embed()

    def whiten(self, x: Tensor) -> Tensor:
        return x / self.root

    def spread(self, noise: Tensor, component: Tensor) -> Tensor:
        return self.root.flatten(0, -2)[flat_index(self.batch, component)] * noise

    def marginal(self, indices: Sequence[int]) -> Diagonal:
        return Diagonal(self.root if self.root.shape[-1] == 1 else self.root[..., indices], len(indices))

    def split(self, given: Sequence[int], rest: Sequence[int]) -> tuple[Diagonal, Tensor | None, Diagonal]:
        return self.marginal(given), None, self.marginal(rest)

    def scaled(self, scale: Tensor) -> Diagonal:
        return Diagonal(self.root * scale, self.dim)

    def trace_ratio(self, other: Root) -> Tensor:
        return (other.variances() / self.variances()).sum((-1, -2))


Root = Triangular | Diagonal


def squared_distances(root: Root, x: Tensor, means: Tensor) -> Tensor:
    """|root_k^-1 (x - mean_k)|^2, (..., K), for x (..., D) and means (..., K, D)."""
    common = root.common()
    if common is None:
        return root.whiten(x[..., None, :] - means).square().sum(-1)
    # One matrix product, |a - b|^2 = |a|^2 + |b|^2 - 2 ab: no (..., K, D) differences. It is off by the rounding of
    # |a|^2 and |b|^2, which is nothing while they are of the order of the distances themselves, about D. Centring
    # removes what all share. It cannot help where components are many widths apart: that takes double precision.
    shared, factor = common
    centre = means.detach().mean(-2, keepdim=True)
    a, b = shared.whiten(x[..., None, :] - centre)[..., 0, :], shared.whiten(means - centre)
    aa, bb = a.square().sum(-1, keepdim=True), b.square().sum(-1)
    widened = double(x.new_empty(0)).dtype
    if x.dtype != widened and all(bool((squares > 8 * x.shape[-1]).any()) for squares in (aa, bb)):
        return squared_distances(root.double(), double(x), double(means)).to(x)
    distances = aa + bb - 2 * product("...d,...kd->...k", a, b)
    return distances if factor is None else distances / factor


def flat_index(batch: torch.Size, component: Tensor) -> Tensor:
    """Where in the flattened (..., K|1) of a parameter the components (...) are that a batch of draws came from."""
    index = torch.arange(math.prod(batch), device=component.device).reshape(batch)
    component = component.clamp_max(batch[-1] - 1)  # a shared parameter serves all of them
    return index.expand(*component.shape, batch[-1]).gather(-1, component[..., None])[..., 0]
