"""Nearest neighbours by cosine similarity: weighted classification, and the distance to what is known."""

from collections.abc import Iterator

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
    _check(bank, queries, k)
    classes = int(labels.max()) + 1
    scores = queries.new_zeros(len(queries), classes, dtype=torch.float32)
    for rows, nearest, index in _nearest(bank, queries, k, chunk):
        # exp relative to each query's best: the same ranking, and no overflow at small temperatures
        weight = ((nearest - nearest.amax(1, keepdim=True)) / temperature).exp()
        scores[rows].scatter_add_(1, labels[index], weight)
    return scores


def knn_distance(bank: Tensor, queries: Tensor, k: int = 5, chunk: int = 1024) -> Tensor:
    """Mean cosine distance 1 - cos (Q,) of the queries (Q, D) to their k nearest of the bank (N, D), in chunks."""
    _check(bank, queries, k)
    distance = queries.new_zeros(len(queries), dtype=torch.float32)
    for rows, nearest, _ in _nearest(bank, queries, k, chunk):
        distance[rows] = 1 - nearest.mean(1)
    return distance


def _nearest(bank: Tensor, queries: Tensor, k: int, chunk: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Per chunk of queries: its rows, and cosine and index (chunk, k) of the nearest, in no particular order."""
    bank = F.normalize(bank.float(), dim=1)
    for start in range(0, len(queries), chunk):
        rows = slice(start, start + chunk)
        similarity = F.normalize(queries[rows].float(), dim=1) @ bank.T  # (chunk, N)
        nearest, index = similarity.topk(min(k, len(bank)), dim=1, sorted=False)
        yield rows, nearest, index


def _check(bank: Tensor, queries: Tensor, k: int) -> None:
    if bank.ndim != 2 or not len(bank):
        raise ValueError(f"bank: expected (N, D) with at least one row, got {tuple(bank.shape)}")
    if bank.shape[1:] != queries.shape[1:]:
        raise ValueError(f"queries: expected (Q, {bank.shape[1]}) like bank, got {tuple(queries.shape)}")
    if k < 1:
        raise ValueError(f"k: expected at least 1, got {k}")
