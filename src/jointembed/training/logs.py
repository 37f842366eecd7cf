"""What a run writes down: metrics.csv, log.txt."""

import csv
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.csv_logs import _ExperimentWriter
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only


class _AppendingWriter(_ExperimentWriter):
    """Lightning's deletes a metrics.csv that is there; a resumed run goes on writing it instead."""

    def _check_log_dir_exists(self) -> None:
        if Path(self.metrics_file_path).is_file():
            with open(self.metrics_file_path, newline="") as file:
                self.metrics_keys = list(csv.DictReader(file).fieldnames or [])


class MetricsFile(CSVLogger):
    """`metrics.csv` in the run folder itself."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, name="", version="")

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            self._experiment = _AppendingWriter(self.log_dir)
        return self._experiment

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """config.json has them."""

    @rank_zero_only
    def save(self) -> None:
        self.experiment.save()


@contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Everything the package logs goes to this file as well."""
    logger = logging.getLogger("jointembed")
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


@contextmanager
def only_errors() -> Iterator[None]:
    """The package logs nothing less: for ranks whose first has said it already."""
    logger = logging.getLogger("jointembed")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
