"""log_prob of `GaussianMixture` against torch's `MixtureSameFamily(Categorical, MultivariateNormal)`, with backward.

    python -m benchmarks.mixture

Both get the same parameters and give gradients to all of them and to z, without validation as in a training loop. One
covariance is shared by the K components, given by its Cholesky factor or as a matrix ("covariance"). In the row "far"
the components lie a hundred widths apart, where ours computes in double. "isotropic" has a variance for each component,
which torch has as `Independent(Normal)`. The two must agree; they run in turn, and the minimum over rounds counts.
Memory is the largest number of bytes of new tensors alive at once, beside it that of one (B, K) and one (B, K, D).
"""

import argparse
import os
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, MultivariateNormal, Normal

from benchmarks.measure import best_seconds, peak_extra_bytes
from jointembed.distributions import GaussianMixture

ROWS = ["factor", "covariance", "far", "isotropic"]


def contenders(row: str, batch: int, count: int, dim: int) -> dict[str, Callable[[], Tensor]]:
    """Name -> one forward and backward pass, which returns the log-densities."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.zeros(count, requires_grad=True)
    means = (100.0 if row == "far" else 1.0) * torch.randn(count, dim, generator=generator)
    z = means[torch.arange(batch) % count] + torch.randn(batch, dim, generator=generator)
    means.requires_grad_()
    z.requires_grad_()
    factor = (torch.eye(dim) + 0.3 / dim**0.5 * torch.randn(dim, dim, generator=generator).tril(-1)).requires_grad_()
    covariance = (factor @ factor.T).detach().requires_grad_()
    variances = torch.linspace(0.5, 2, count).requires_grad_()
    quick = {"validate_args": False}

    def ours() -> Distribution:
        weights = logits.softmax(-1)
        if row == "isotropic":
            return GaussianMixture.isotropic(weights, means, variances, **quick)
        if row == "covariance":
            return GaussianMixture(weights, means, covariance[None], **quick)
        return GaussianMixture(weights, means, scale_tril=factor[None], **quick)

    def torchs() -> Distribution:
        if row == "isotropic":
            components: Distribution = Independent(Normal(means, variances.sqrt()[:, None], **quick), 1, **quick)
        elif row == "covariance":
            components = MultivariateNormal(means, covariance, **quick)
        else:
            components = MultivariateNormal(means, scale_tril=factor, **quick)
        return MixtureSameFamily(Categorical(logits=logits, **quick), components, **quick)

    def step(make: Callable[[], Distribution]) -> Callable[[], Tensor]:
        def run() -> Tensor:
            log_prob = make().log_prob(z)
            log_prob.mean().backward()
            return log_prob.detach()

        return run

    return {"ours": step(ours), "torch": step(torchs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--components", type=int, default=512)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seconds", type=float, default=2.0, help="time given to each contender in each row")
    arguments = parser.parse_args()
    batch, count = arguments.batch, arguments.components
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, load average {os.getloadavg()[0]:.1f}")
    print(f"B = {batch}, K = {count}; times in ms, memory in MB")
    print("    row         D |   ours    torch  times faster |   ours    torch  times less |  (B, K)  (B, K, D)")
    for dim in arguments.dims:
        for row in ROWS:
            calls = contenders(row, batch, count, dim)
            torch.testing.assert_close(calls["ours"](), calls["torch"](), rtol=1e-3, atol=1e-3)
            t = {name: 1e3 * seconds for name, seconds in best_seconds(calls, arguments.seconds).items()}
            mb = {name: peak_extra_bytes(call) / 2**20 for name, call in calls.items()}
            print(
                f"    {row:10} {dim:3} | {t['ours']:6.1f} {t['torch']:8.1f} {t['torch'] / t['ours']:13.1f} |"
                f" {mb['ours']:6.1f} {mb['torch']:8.1f} {mb['torch'] / mb['ours']:11.1f} |"
                f" {4 * batch * count / 2**20:7.1f} {4 * batch * count * dim / 2**20:10.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
