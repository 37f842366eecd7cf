"""What methods put into collectives: counted, against closed forms."""

import pytest
import torch

from benchmarks.communication import Ledger, third_step
from benchmarks.cost_model import VARIANTS, Payload, Sizes, largest, payload

# Odd ones, so that no two products are equal by chance.
SIZES = [Sizes(12, 5, 300, 3, 23, 17, 34), Sizes(7, 9, 37, 4, 26, 11, 20)]
TWO_BLOCKS = Sizes(600, 3, 401, 2)  # of SIGReg's slices


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_sent_is_what_the_closed_form_says(variant: str) -> None:
    for sizes in [*SIZES, TWO_BLOCKS] if variant == "lejepa" else SIZES:
        ledger = Ledger(sizes.ranks)
        third_step(variant, sizes, ledger)
        assert ledger.payload == payload(variant, sizes), sizes


@pytest.mark.parametrize("variant", [v for v in VARIANTS if largest(v, SIZES[0]) is not None])
def test_the_largest_tensor_is_what_the_closed_form_says(variant: str) -> None:
    sizes = Sizes(12, 40 if variant in ("vicreg", "barlow-twins") else 4, 300, 8, 150, 150, 70)
    assert third_step(variant, sizes, Ledger(sizes.ranks)) == largest(variant, sizes)


def test_a_ring_sends_what_textbooks_say() -> None:
    assert Payload(reduced=1000).sent(2) == 1000  # half, twice
    assert Payload(reduced=1000).sent(4) == pytest.approx(1500)
    assert Payload(gathered=10).sent(4) == 30
    assert Payload(broadcast=10).sent(4) == 10
    assert Payload(1, 1, 1).sent(1) == 0


def test_counting_leaves_a_single_process_as_it_was() -> None:
    third_step("simclr", SIZES[0], Ledger(3))
    assert not torch.distributed.is_initialized()
    ledger = Ledger(1)
    third_step("simclr", SIZES[0], ledger)
    assert ledger.entries == []
