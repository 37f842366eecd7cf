"""Files that are either whole or not there."""

import importlib.util
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

_LEFTOVER = re.compile(r"\..+(\.\w+)\.[a-z0-9_]{8}\1")  # .model.safetensors.k3x_9qa0.safetensors


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it there when the block ends well, remove it when it does not.

    A link at `path` is replaced, never followed. A disk that is full or read-only is an OSError that names `path`.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stem = os.fsdecode(os.fsencode(path.name)[:100])  # a name may have 255 bytes, and this one is longer
        handle, name = tempfile.mkstemp(prefix=f".{stem}.", suffix=path.suffix, dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb") as file:  # a power cut after the move must not find an empty file
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # temporary files are private; what a run leaves is the user's to share
        os.replace(temporary, path)
    except OSError as error:
        kind = type(error) if type(error).__module__ == "builtins" else OSError
        named = kind(f"{path} could not be written: {error.strerror or error}")
        named.errno = error.errno
        raise named from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def leftovers(folder: Path) -> list[Path]:
    """The temporary files of writes that were killed."""
    return [path for path in folder.glob(".*") if _LEFTOVER.fullmatch(path.name) and not path.is_dir()]


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """A safetensors file, whole or not at all."""
    from safetensors.torch import save

    # Written by Python: what safetensors itself raises on a full disk is no OSError.
    known = {"format": "pt", **(metadata or {})}
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata=known)
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def check_table_name(out: str | Path, other: str) -> Path:
    """The path, if a table can be written there as `other`, a suffix, or as .parquet: asked before the work is done."""
    path = Path(out)
    if path.suffix not in (other, ".parquet"):
        raise ValueError(f"out: expected a file name ending in {other} or .parquet, got {out}")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ValueError(f"out: {out} needs pyarrow: pip install jointembed[parquet], or write {other}")
    return path
