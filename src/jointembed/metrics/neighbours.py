"""Weighted k-nearest-neighbour classification by cosine similarity."""

import torch
import torch.nn.functional as F
from torch import Tensor


def knn_predict(
    bank: Tensor, labels: Tensor, queries: Tensor, k: int = 30, temperature: float = 0.07, chunk: int = 1024
) -> Tensor:
    """Class scores (Q, classes) of the queries (Q, D) from their k nearest of the bank (N, D), weighted exp(cos / T).

    Queries go in chunks, so that the similarities take chunk x N and never Q x N.
    """
    if len(bank) != len(labels):
        raise ValueError(f"labels: expected one for each of the {len(bank)} rows of bank, got {len(labels)}")
    if bank.shape[1:] != queries.shape[1:]:
        raise ValueError(f"queries: expected (Q, {bank.shape[1]}) like bank, got {tuple(queries.shape)}")
    if k < 1:
        raise ValueError(f"k: expected at least 1, got {k}")
    k = min(k, len(bank))
    bank = F.normalize(bank.float(), dim=1)
    classes = int(labels.max()) + 1
    scores = queries.new_zeros(len(queries), classes, dtype=torch.float32)
    for start in range(0, len(queries), chunk):
        similarity = F.normalize(queries[start : start + chunk].float(), dim=1) @ bank.T  # (chunk, N)
        nearest, index = similarity.topk(k, dim=1, sorted=False)
        # exp relative to each query's best: the same ranking, and no overflow at small temperatures
        weight = ((nearest - nearest.amax(1, keepdim=True)) / temperature).exp()
        scores[start : start + chunk].scatter_add_(1, labels[index], weight)
    return scores
