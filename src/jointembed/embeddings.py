"""Embeddings as a file: `.npz` for numpy, `.parquet` for data bases and data frames."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from jointembed._files import atomic, check_table_name


def check_embeddings(out: str | Path) -> Path:
    """The path, if `write_embeddings` can write there: to be asked before the work is done."""
    return check_table_name(out, ".npz")


def write_embeddings(
    out: str | Path, z: Tensor, names: Sequence[str] | None = None, labels: Tensor | None = None
) -> None:
    """Write embeddings (N, D) with names and labels (N,) where there are any, whole or not at all.

    An `.npz` has the arrays embeddings, names and labels; a `.parquet` the columns name (text, or the image's number),
    label and embedding, a list of D float32 in each row. Names stay as they are; in Parquet, which takes only valid
    Unicode, other bytes of a file name become \\udc.. escapes.
    """
    path = check_embeddings(out)
    if z.ndim != 2:
        raise ValueError(f"z: expected (N, D), got shape {tuple(z.shape)}")
    for argument, values in (("names", names), ("labels", labels)):
        if values is not None and len(values) != len(z):
            raise ValueError(f"{argument}: expected one for each of {len(z)} embeddings, got {len(values)}")
    with atomic(path) as temporary:
        if path.suffix == ".npz":
            _write_npz(temporary, z, names, labels)
        else:
            _write_parquet(temporary, z, names, labels)


def _write_npz(path: Path, z: Tensor, names: Sequence[str] | None, labels: Tensor | None) -> None:
    arrays: dict[str, Any] = {"embeddings": z.numpy()}
    if names is not None:
        arrays["names"] = np.array(names)
    if labels is not None:
        arrays["labels"] = labels.numpy()
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _write_parquet(path: Path, z: Tensor, names: Sequence[str] | None, labels: Tensor | None) -> None:
    import pyarrow
    import pyarrow.parquet

    columns: dict[str, Any] = {
        "name": range(len(z)) if names is None else [n.encode("utf-8", "backslashreplace").decode() for n in names]
    }
    if labels is not None:
        columns["label"] = labels.numpy()
    flat = pyarrow.array(z.float().contiguous().numpy().reshape(-1))
    columns["embedding"] = pyarrow.FixedSizeListArray.from_arrays(flat, z.shape[1])
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
