import pytest


@pytest.fixture(autouse=True)
def _always_one_thread(_one_thread: None) -> None:
    """The tensors here are small."""
