from pathlib import Path

import numpy as np
import pytest
import torch

import jointembed as je
from jointembed.cli import main
from jointembed.embeddings import write_embeddings

NAMES = ["=1+1", "a\nb", "é.png", "\udcff.png"]


def test_parquet_holds_names_labels_and_embeddings_as_they_are(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    z, labels = torch.randn(4, 3), torch.tensor([1, 0, -1, 2])
    write_embeddings(tmp_path / "z.parquet", z, NAMES, labels)
    table = parquet.read_table(tmp_path / "z.parquet")
    assert table.column_names == ["name", "label", "embedding"]
    assert str(table.schema.field("embedding").type).startswith("fixed_size_list<") and "[3]" in str(table.schema)
    assert table["name"].to_pylist() == [*NAMES[:3], r"\udcff.png"]
    assert table["label"].to_pylist() == [1, 0, -1, 2]
    assert torch.equal(torch.tensor(table["embedding"].to_pylist()), z)


def test_npz_holds_any_name(tmp_path: Path) -> None:
    z = torch.randn(4, 3)
    write_embeddings(tmp_path / "z.npz", z, NAMES)
    with np.load(tmp_path / "z.npz") as arrays:
        assert arrays["names"].tolist() == NAMES and sorted(arrays) == ["embeddings", "names"]
        assert torch.equal(torch.from_numpy(arrays["embeddings"]), z)


def test_embed_writes_parquet(run: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    main(["embed", str(run), "--data", "digits", "--out", str(tmp_path / "z.parquet")])
    table = parquet.read_table(tmp_path / "z.parquet")
    digits = je.data.open_source("digits")
    found = np.stack(table["embedding"].to_numpy())
    np.testing.assert_allclose(found, je.load(run).embed(digits), atol=1e-5)
    assert table["label"].to_pylist() == digits.labels.tolist()
    assert table["name"].to_pylist() == list(range(len(digits)))


def test_embeddings_are_checked_before_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="names: expected one for each of 2 embeddings, got 1"):
        write_embeddings(tmp_path / "z.npz", torch.zeros(2, 3), ["a"])
    with pytest.raises(
        SystemExit, match="^jointembed: out: expected a file name ending in .npz or .parquet, got z.csv"
    ):
        main(["embed", "no-such-run", "--data", "digits", "--out", "z.csv"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"z.parquet needs pyarrow: pip install jointembed\[parquet\]"):
        main(["embed", "no-such-run", "--data", "digits", "--out", "z.parquet"])
    assert not list(tmp_path.iterdir())
