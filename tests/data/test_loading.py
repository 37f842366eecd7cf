import numpy as np
import torch

from jointembed.data import Views, open_source
from jointembed.data.loading import BatchReader, EpochBatches, GrowingViews, channel_statistics, read_batches


def indices(sampler: EpochBatches) -> list[list[int]]:
    return [key.indices.tolist() for key in sampler]


def test_an_epoch_shows_each_image_at_most_once_and_drops_the_rest() -> None:
    batches = indices(EpochBatches(103, 10))
    seen = [i for batch in batches for i in batch]
    assert len(batches) == 10
    assert len(set(seen)) == len(seen) == 100


def test_order_is_a_function_of_seed_and_epoch_not_of_history() -> None:
    walked = EpochBatches(50, 5, seed=3)
    for epoch in range(4):
        walked.set_epoch(epoch)
        last = indices(walked)
    fresh = EpochBatches(50, 5, seed=3)
    fresh.set_epoch(3)
    assert indices(fresh) == last
    assert indices(EpochBatches(50, 5, seed=4)) != indices(EpochBatches(50, 5, seed=3)) != last


def test_ranks_share_the_epoch_without_overlap() -> None:
    ranks = [{i for batch in indices(EpochBatches(64, 8, rank=r, world_size=2)) for i in batch} for r in range(2)]
    assert not ranks[0] & ranks[1]
    assert ranks[0] | ranks[1] == set(range(64))


def test_photographs_of_different_sizes_leave_the_worker_as_views() -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    photos = [Image.fromarray(rng.integers(0, 256, (20 + i, 30 - i, 3), dtype=np.uint8)) for i in range(6)]
    source, views = open_source(photos), GrowingViews([Views(16, num_global=2)], epochs=1)
    key = next(iter(EpochBatches(6, 4, seed=1)))
    batch = BatchReader(source, views, seed=1, rank=0)[key]
    expected = views(source.batch(key.indices), (1, 0, 0, 0))
    assert len(batch) == 2
    for ours, reference in zip(batch, expected, strict=True):
        assert torch.equal(ours, reference)


def test_growing_views_share_the_epochs_equally() -> None:
    images = torch.randint(0, 256, (2, 3, 12, 12), dtype=torch.uint8)
    views = GrowingViews([Views(6), Views(8), Views(10)], epochs=7)
    sizes = [views(images, (0, epoch, 0, 0))[0].shape[-1] for epoch in range(8)]
    assert sizes == [6, 6, 6, 8, 8, 10, 10, 10]


def test_reading_in_batches_gives_all_images_in_order() -> None:
    source = open_source("digits")
    read = torch.cat(list(read_batches(source, 100)))
    assert torch.equal(read, source.batch(torch.arange(len(source))))


def test_channel_statistics_are_those_of_numpy() -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 9, 9, 3), dtype=np.uint8)
    images[..., 2] = 7
    mean, std = channel_statistics(open_source(images))
    np.testing.assert_allclose(mean, (images / 255).mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(std[:2], (images / 255).std((0, 1, 2), ddof=1)[:2], rtol=1e-5)
    assert std[2] == np.float32(1e-3)
