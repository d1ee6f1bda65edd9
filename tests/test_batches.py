"""The loader's order is a function of (seed, epoch), alone and under Lightning, unbroken and resumed."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor, nn

from datamodules.base import Split
from datamodules.batches import Batch, Batches
from datamodules.errors import DataMismatch
from datamodules.generated import GeneratedData
from networks.inputs import Inputs, Sequences

SIZES = st.integers(1, 40)


def numbered(rows: int) -> tuple[Tensor, Tensor]:
    """Row i is filled with i."""
    x = torch.arange(rows, dtype=torch.float32)[:, None].expand(rows, 3).contiguous()
    return x, torch.arange(rows, dtype=torch.uint8)[:, None]


def order(batches: Batches) -> list[int]:
    return [int(row) for batch in batches for row in batch.inputs[:, 0]]


@given(SIZES, st.integers(1, 10), st.integers(0, 3), st.integers(0, 5))
def test_an_epoch_visits_every_row_once(rows: int, batch_size: int, seed: int, epoch: int) -> None:
    x, y = numbered(rows)
    batches = Batches(x, y, batch_size=batch_size, seed=seed)
    batches.set_epoch(epoch)
    sizes = [len(batch.inputs) for batch in batches]
    assert len(batches) == len(sizes)
    assert all(size == batch_size for size in sizes[:-1])
    assert sorted(order(batches)) == list(range(rows))


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    x, y = numbered(50)

    def drawn(seed: int, epoch: int) -> list[int]:
        torch.rand(seed + epoch)  # the global generator plays no part
        batches = Batches(x, y, batch_size=8, seed=seed)
        batches.set_epoch(epoch)
        return order(batches)

    assert drawn(0, 3) == drawn(0, 3)
    assert len({tuple(drawn(seed, epoch)) for seed in range(4) for epoch in range(4)}) == 16


def test_without_a_seed_the_rows_keep_their_order() -> None:
    assert order(Batches(*numbered(10), batch_size=4)) == list(range(10))


def test_answers_are_floats_and_belong_to_their_inputs() -> None:
    x, y = numbered(20)
    mask = y.bool()
    for batch in Batches(x, y, batch_size=6, seed=1, mask=mask):
        assert batch.y.dtype == torch.float32
        assert torch.equal(batch.inputs[:, :1], batch.y)
        assert batch.mask is not None
        assert torch.equal(batch.mask, batch.y.bool())


@given(SIZES, st.integers(1, 4), st.integers(1, 7))
def test_processes_share_an_epoch_without_overlap(rows: int, world_size: int, batch_size: int) -> None:
    x, y = numbered(rows)
    shares = [
        Batches(x, y, batch_size=batch_size, seed=0, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    taken = [order(share) for share in shares]
    assert {len(rows_of) for rows_of in taken} == {rows // world_size}
    assert len({row for rows_of in taken for row in rows_of}) == rows // world_size * world_size
    assert all(len(share) == len(list(share)) for share in shares)


LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60)


def sentences(lengths: list[int]) -> tuple[Sequences, Tensor]:
    """Sentence i, of its length, is filled with i."""
    mask = torch.arange(30) < torch.tensor(lengths).unsqueeze(1)
    x = mask.long() * torch.arange(len(lengths)).unsqueeze(1)
    return Sequences(x, mask), mask[..., None]


def steps(share: Batches) -> list[list[int]]:
    return [_first(batch.inputs).int().tolist() for batch in share]


def _first(inputs: Inputs) -> Tensor:
    return (inputs if isinstance(inputs, Tensor) else inputs.values)[:, 0]


def test_a_pool_of_one_is_the_permutation_itself() -> None:
    x, y = sentences([3, 1, 2, 9, 4, 1, 7])
    batches = Batches(x, y, batch_size=3, seed=2, pool=1)
    batches.set_epoch(4)
    drawn = torch.randperm(7, generator=torch.Generator().manual_seed(2 * 1_000_003 + 4)).tolist()
    assert steps(batches) == [drawn[:3], drawn[3:6], drawn[6:]]


@given(LENGTHS, st.integers(1, 7), st.integers(2, 5), st.integers(1, 3), st.integers(0, 2))
def test_pools_part_an_epoch_among_processes_and_its_batches_by_length(
    lengths: list[int], batch_size: int, pool: int, world_size: int, epoch: int
) -> None:
    x, y = sentences(lengths)
    shares = [
        Batches(x, y, batch_size=batch_size, seed=1, rank=rank, world_size=world_size, pool=pool)
        for rank in range(world_size)
    ]
    for share in shares:
        share.set_epoch(epoch)
    taken = [steps(share) for share in shares]
    sizes = [[len(step) for step in steps_of] for steps_of in taken]
    assert all(len(share) == len(steps_of) for share, steps_of in zip(shares, taken, strict=True))
    assert all(sizes_of == sizes[0] for sizes_of in sizes)  # the processes march in step
    assert sorted(sizes[0])[1:] == [batch_size] * (len(sizes[0]) - 1)  # one may be short
    rows = [row for steps_of in taken for step in steps_of for row in step]
    assert len(set(rows)) == len(rows) == len(lengths) // world_size * world_size
    drawn = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(1_000_003 + epoch))
    place = {row: at // (batch_size * world_size * pool) for at, row in enumerate(drawn.tolist())}
    spans: dict[int, list[list[int]]] = {}
    for together in zip(*taken, strict=True):
        step = [row for part in together for row in part]
        assert len({place[row] for row in step}) == 1  # from one pool
        spans.setdefault(place[step[0]], []).append(sorted(lengths[row] for row in step))
    for of_pool in spans.values():
        assert all(before[-1] <= after[0] for before, after in pairwise(sorted(of_pool)))


def test_pools_leave_less_padding_and_keep_the_order_of_batches_random() -> None:
    lengths = torch.randint(1, 30, (400,), generator=torch.Generator().manual_seed(0)).tolist()
    x, y = sentences(lengths)

    def padding(pool: int) -> float:
        masks = [batch.mask for batch in Batches(x, y, batch_size=10, seed=0, pool=pool)]
        return 1 - sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks)

    assert padding(20) < 0.1 < 0.4 < padding(1)
    batches = Batches(x, y, batch_size=10, seed=0, pool=40)
    epochs = []
    for epoch in (0, 1, 0):
        batches.set_epoch(epoch)
        epochs.append(steps(batches))
    longest = [max(lengths[row] for row in step) for step in epochs[0]]
    assert epochs[0] == epochs[2] != epochs[1] and longest != sorted(longest)


def test_a_pool_without_lengths_or_a_drawn_order_is_refused() -> None:
    x, y = sentences([1, 2])
    for inputs, options in (
        (x.values, {"pool": 2, "seed": 0}),
        (x, {"pool": 2}),
        (x, {"pool": 0, "seed": 0}),
    ):
        with pytest.raises(DataMismatch, match=f"^pool is {options['pool']}: take 1"):
            Batches(inputs, y, batch_size=1, **options)


def test_fewer_examples_than_processes_are_no_batch() -> None:
    assert steps(Batches(*numbered(1), batch_size=2, seed=0, world_size=2)) == []


class Diary(LightningModule):
    """Writes down the first row of each training batch, by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(5, 3)
        self.pages: dict[int, list[float]] = {}
        self.seen: set[int] = set()
        self.validated = 0

    def training_step(self, batch: Batch, index: int) -> Tensor:
        self.pages.setdefault(self.current_epoch, []).append(float(batch.inputs[0, 0]))
        return nn.functional.binary_cross_entropy_with_logits(self.net(batch.inputs), batch.y)

    def validation_step(self, batch: Batch, index: int) -> None:
        self.validated += len(batch.inputs)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def made_up(**options: int) -> GeneratedData:
    return GeneratedData(5, 3, num_rows=100, batch_size=8, **options)


def train(folder: Path, epochs: int, resume: Path | None = None) -> Diary:
    torch.manual_seed(0)
    keep = ModelCheckpoint(folder, save_last=True, save_on_train_epoch_end=True)
    trainer = Trainer(
        max_epochs=epochs,
        callbacks=[keep],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    diary = Diary()
    trainer.fit(diary, made_up(seed=3), ckpt_path=resume)
    return diary


@pytest.mark.filterwarnings("ignore:.*checkpoint.*", "ignore:.*dirpath.*", "ignore:.*log_every_n_steps.*")
def test_a_resumed_run_sees_the_batches_of_an_unbroken_one(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 4)
    train(tmp_path / "broken", 2)
    resumed = train(tmp_path / "broken", 4, tmp_path / "broken" / "last.ckpt")
    assert set(resumed.pages) == {2, 3}
    assert resumed.pages == {epoch: whole.pages[epoch] for epoch in (2, 3)}
    assert whole.pages[0] != whole.pages[1]
    for ours, theirs in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_batch_on_the_right_device_is_handed_on_untouched() -> None:
    data, batch = made_up(), Batch(torch.zeros(2, 5), torch.zeros(2, 3))
    assert data.transfer_batch_to_device(batch, torch.device("cpu"), 0) is batch
    moved = data.transfer_batch_to_device(batch, torch.device("meta"), 0)
    assert moved.inputs.device.type == moved.y.device.type == "meta"


def test_loading_happens_once_and_evaluation_takes_big_batches() -> None:
    data = made_up(eval_batch_size=15)
    data.setup("fit")
    split = data.splits["train"]
    data.setup("test")
    assert data.splits["train"].inputs is split.inputs
    assert [len(batch.inputs) for batch in data.val_dataloader()][:-1] == [15] * (
        len(data.val_dataloader()) - 1
    )
    assert order(data.test_dataloader()) == [int(value) for value in data.splits["test"].inputs[:, 0]]


def test_a_split_moves_with_its_mask() -> None:
    mask, known = torch.ones(2, 1).bool(), torch.ones(2).bool()
    for inputs, told in ((torch.zeros(2, 3), mask), (Sequences(torch.zeros(2, 1, 3), mask), None)):
        split = Split(inputs, torch.zeros(2, 1), told, known).to(torch.device("meta"))
        assert split.mask is not None and split.observed is not None
        parts = (split.inputs, split.y, split.mask, split.observed)
        assert {part.device.type for part in parts} == {"meta"}


def test_a_batch_of_sequences_is_as_long_as_its_longest() -> None:
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.bool)
    x, y = torch.arange(4 * 4 * 2).view(4, 4, 2), torch.arange(4 * 4 * 3).view(4, 4, 3)
    first, second = Batches(Sequences(x, mask), y, batch_size=2)  # from the shortest to the longest
    assert first.y.shape == (2, 1, 3) and first.mask.shape == (2, 1)
    longest = [0, 2]
    assert torch.equal(first.inputs.values, x[[3, 1], :1])
    assert torch.equal(second.inputs.values, x[longest, :3])
    assert torch.equal(second.mask, mask[longest, :3])  # a gap is kept
    assert second.inputs.mask is second.mask
    (whole,) = Batches(x[:, 0], y, mask=mask, batch_size=4)
    assert whole.inputs.shape == (4, 2) and whole.y.shape == (
        4,
        3,
        3,
    )  # an input that is no sequence stays whole


def test_hidden_answers_are_refused_on_several_processes() -> None:
    split = {"batch_size": 2, "seed": 0, "observed": torch.tensor([True, False, True, True])}
    with pytest.raises(DataMismatch, match=r"2 processes do not weigh the others alike.*--trainer.devices 1"):
        Batches(torch.zeros(4, 3), torch.zeros(4, 2), world_size=2, **split)
    assert len(Batches(torch.zeros(4, 3), torch.zeros(4, 2), **split)) == 2
