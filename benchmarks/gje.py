"""The dual loss, exact and through random Fourier features, against the batch size: forward and backward, one run.

    python -m benchmarks.gje

The exact loss factors a (B, B) matrix, O(B^3); the other a (D, D) one, O(B D^2), and never holds anything of size
B x B. Contenders run in turn within each round, and the minimum over rounds counts. The last line fits the exponent p
of time ~ B^p over the larger half of the batch sizes: 1 is linear.
"""

import argparse
import math
import os
import time

import torch

from jointembed.methods.gje import dual_gje_loss, rff_gje_loss

DIM = 64


def seconds(loss, z_context: torch.Tensor, z_target: torch.Tensor, **options: int) -> float:
    began = time.perf_counter()
    loss(z_context, z_target, "rbf", DIM**0.5, 0.5, 0.5, **options)["loss"].backward()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--largest-exact", type=int, default=4096, help="B up to which the exact loss is timed")
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, load average {os.getloadavg()[0]:.1f}, D = {arguments.features}")
    print("    B |  exact ms    rff ms | exact / rff")
    times: dict[str, dict[int, float]] = {"exact": {}, "rff": {}}
    for count in arguments.batches:
        z_context, z_target = torch.randn(count, DIM, requires_grad=True), torch.randn(count, DIM)
        for name, found in times.items():
            found[count] = math.inf if name == "rff" or count <= arguments.largest_exact else math.nan
        for _ in range(arguments.rounds + 1):
            now = seconds(rff_gje_loss, z_context, z_target, num_features=arguments.features)
            times["rff"][count] = min(times["rff"][count], now)
            if count <= arguments.largest_exact:
                times["exact"][count] = min(times["exact"][count], seconds(dual_gje_loss, z_context, z_target))
        exact, rff = times["exact"][count], times["rff"][count]
        print(f"{count:5} | {1e3 * exact:9.1f} {1e3 * rff:9.1f} | {exact / rff:11.2f}", flush=True)
    for name, found in times.items():
        known = [(count, t) for count, t in found.items() if math.isfinite(t)]
        (b0, t0), (b1, t1) = known[(len(known) - 1) // 2], known[-1]
        print(f"{name}: time ~ B^{math.log(t1 / t0) / math.log(b1 / b0):.2f} from B = {b0} to {b1}")


if __name__ == "__main__":
    main()
