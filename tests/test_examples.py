"""The examples run, and what they print shows that something was learned."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_time_series_are_told_apart_better_than_by_their_spectra(capsys: pytest.CaptureFixture[str]) -> None:
    found = example("time_series").main(steps=60)
    assert f"trained {100 * found['trained']:.1f} %" in capsys.readouterr().out
    assert found["trained"] > max(found["raw windows"], found["power spectra"], found["untrained"]) + 0.1


@pytest.mark.soak
def test_time_series_are_told_apart_almost_always() -> None:
    found = example("time_series").main()
    assert found["trained"] > 0.95 > 0.6 > max(found["raw windows"], found["power spectra"], found["untrained"])


@pytest.mark.soak
def test_a_plain_loop_learns_digits() -> None:
    found = example("plain_pytorch").main()
    assert found["trained"] > max(found["pixels"], found["untrained"]) + 0.05


@pytest.mark.soak
def test_a_lightning_module_of_ones_own_learns_what_is_strange() -> None:
    found = example("with_lightning").main()
    assert found["trained"] > max(found["untrained"], 0.5) + 0.1


@pytest.mark.soak
def test_lightly_feeds_our_loss() -> None:
    pytest.importorskip("lightly")
    found = example("with_lightly").main()
    assert found["trained"] > max(found["pixels"], found["untrained"])
