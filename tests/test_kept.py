"""Kept layers: equal to those computed each time, whole or not there, shared by processes."""

import errno
import logging
import multiprocessing
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import text_world as world

pytest.importorskip("transformers", reason="the extra hf is not installed")

from datamodules.batches import Batches
from datamodules.errors import DataCorrupt, DataMismatch, DiskFull
from datamodules.text.kept import keep
from datamodules.text.tokens import Pieces, pieces_of
from lightning_modules.engine.unseen import fingerprints
from networks.transformer import Encoder, Kept
from networks.transformer.encoder import Pooling
from networks.transformer.weights import EncoderUnusable, place_of

HALF = 1e-2  # what float16 below two layers changes in their output
fresh = multiprocessing.get_context("spawn")  # a fork shares torch's thread pool: its threads may race for it


@pytest.fixture(scope="module")
def mini() -> str:
    return world.needs_encoder()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def stories(mini: str) -> Pieces:
    return pieces_of(world.stories(8), mini, max_pieces=48)


@pytest.fixture(scope="module")
def sentences(mini: str) -> Pieces:
    return pieces_of(world.sentences()[:40], mini)


@pytest.mark.parametrize("pooling", ["first", "mean", "pooler"])
def test_top_layers_read_the_same_from_kept_states(
    mini: str, folder: Path, stories: Pieces, pooling: Pooling
) -> None:
    net = Encoder(mini, trained="top_layers", num_top=2, pooling=pooling).eval()
    texts = torch.tensor([5, 0, 0, 7, 3])
    kept = keep(stories, mini, 4, folder=folder)
    with torch.no_grad():
        ours, wanted = (net(stories.inputs(texts, kept=states)) for states in (kept, None))
    torch.testing.assert_close(ours, wanted, atol=HALF, rtol=HALF)
    assert kept.states.dtype == torch.float16


def test_predicates_of_a_sentence_share_its_states(mini: str, folder: Path, sentences: Pieces) -> None:
    net = Encoder(mini, trained="top_layers", pooling="words", marks=True).eval()
    texts = torch.tensor([4, 4, 11, 2, 2, 2])
    marks = torch.zeros_like(sentences.words(texts)[1])
    marks[torch.arange(6), torch.tensor([0, 1, 2, 0, 2, 1])] = True
    kept = keep(sentences, mini, 4, folder=folder)
    index = torch.tensor([1, 3, 0, 5])
    ours, wanted = (sentences.inputs(texts, marked=marks, kept=one).rows(index) for one in (kept, None))
    assert isinstance(ours, Kept)
    assert len(ours.states) == int(sentences.offsets.diff()[[2, 4]].sum())
    with torch.no_grad():
        torch.testing.assert_close(net(ours), net(wanted), atol=HALF, rtol=HALF)
    assert ours.mask is not None and wanted.mask is not None and torch.equal(ours.mask, wanted.mask)


@pytest.mark.parametrize("pooling", ["first", "mean", "pooler"])
def test_a_frozen_encoder_reads_the_same_from_pooled_states(
    mini: str, folder: Path, stories: Pieces, pooling: Pooling
) -> None:
    net = Encoder(mini, trained="frozen", pooling=pooling).eval()
    texts = torch.tensor([1, 6, 6])
    pooled, whole = (keep(stories, mini, 6, folder=folder, pooling=one) for one in (pooling, None))
    assert pooled.states.shape == (8, 384)
    with torch.no_grad():
        wanted = net(stories.inputs(texts))
        for kept in (pooled, whole):
            torch.testing.assert_close(net(stories.inputs(texts, kept=kept)), wanted, atol=2e-3, rtol=2e-3)


def test_gradients_are_those_of_layers_computed_each_time(mini: str, folder: Path, stories: Pieces) -> None:
    net = Encoder(mini, trained="top_layers").eval()
    kept, gradients = keep(stories, mini, 4, folder=folder), []
    for states in (kept, None):
        net.zero_grad()
        net(stories.inputs(torch.arange(4), kept=states)).square().mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]))
    assert torch.cosine_similarity(*gradients, dim=0) > 0.9999


def test_batches_of_similar_length_hold_the_examples_they_name(
    mini: str, folder: Path, sentences: Pieces
) -> None:
    texts = torch.arange(40).repeat_interleave(2)
    inputs = sentences.inputs(texts, kept=keep(sentences, mini, 4, folder=folder))
    _, mask = sentences.words(texts)
    y = torch.arange(80).view(-1, 1, 1).expand(-1, mask.shape[1], 1)
    pooled = Batches(inputs, y, batch_size=8, seed=0, pool=5)
    widths = []
    for batch in pooled:
        own = batch.y[:, 0, 0].long()
        torch.testing.assert_close(batch.inputs.padded, inputs.rows(own).padded)
        assert batch.mask is batch.inputs.mask and batch.y.shape[:2] == batch.mask.shape
        widths.append(batch.inputs.padded.shape[1])
    plain = [b.inputs.padded.shape[1] for b in Batches(inputs, y, batch_size=8, seed=0)]
    assert sum(widths) < sum(plain)
    ordered = [batch.inputs.lengths.tolist() for batch in Batches(inputs, y, batch_size=8)]
    assert [*chain.from_iterable(ordered)] == sorted(inputs.lengths.tolist())


def test_examples_are_told_apart_by_what_they_read(mini: str, folder: Path, sentences: Pieces) -> None:
    texts = torch.tensor([0, 0, 1])
    marks = torch.zeros_like(sentences.words(texts)[1])
    marks[torch.arange(3), torch.tensor([0, 1, 1])] = True
    kept = keep(sentences, mini, 4, folder=folder)
    prints = fingerprints(sentences.inputs(torch.cat([texts, texts]), marked=marks.repeat(2, 1), kept=kept))
    assert prints[:3] == prints[3:] and len({*prints}) == 3


def test_the_data_and_the_network_keep_the_same_layers(mini: str, folder: Path, stories: Pieces) -> None:
    x = stories.inputs(torch.arange(2), kept=keep(stories, mini, 4, folder=folder))
    with pytest.raises(EncoderUnusable, match=r"keeps 4 layers.*freezes 3\. Set --data.kept_layers 3"):
        Encoder(mini, trained="top_layers", num_top=3)(x)
    pooled = stories.inputs(torch.arange(2), kept=keep(stories, mini, 6, folder=folder, pooling="mean"))
    with pytest.raises(EncoderUnusable, match=r"pooled as 'mean', the network has pooling: first"):
        Encoder(mini, trained="frozen")(pooled)
    with pytest.raises(DataMismatch, match=r"pooled above all layers: set --data.kept_layers 6, not 4"):
        keep(stories, mini, 4, folder=folder, pooling="mean")
    with pytest.raises(EncoderUnusable, match="has 6 layers"):
        keep(stories, mini, 7, folder=folder)


def test_other_texts_layers_tokenizers_and_weights_have_other_files(mini: str, tmp_path: Path) -> None:
    texts = world.stories(2)
    copy = tmp_path / "encoder"
    shutil.copytree(place_of(mini), copy, copy_function=shutil.copyfile)
    for way in (
        lambda: keep(pieces_of(texts, mini, max_pieces=8), mini, 1, folder=tmp_path),
        lambda: keep(pieces_of(texts, str(copy), max_pieces=8), str(copy), 1, folder=tmp_path),  # the same
        lambda: keep(pieces_of(texts, mini, max_pieces=9), mini, 1, folder=tmp_path),
        lambda: keep(pieces_of(texts, mini, max_pieces=8), mini, 2, folder=tmp_path),
        lambda: keep(pieces_of(texts, mini, max_pieces=8), mini, 6, folder=tmp_path, pooling="first"),
    ):
        way()
    assert len([*(tmp_path / "kept").glob("*.npy")]) == 4
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    keep(pieces_of(texts, mini, max_pieces=8), str(copy), 1, folder=tmp_path)
    assert len([*(tmp_path / "kept").glob("*.npy")]) == 5


def told(work: Callable[[], Any]) -> list[str]:
    """The messages that the work logs."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    work()
    return messages


def keep_together(
    both: Barrier, results: "Queue[tuple[int, float]]", sentences: Pieces, mini: str, folder: Path
) -> None:
    kept: list[Kept] = []
    both.wait()
    messages = told(lambda: kept.append(keep(sentences, mini, 4, folder=folder)))
    results.put((sum(m.startswith("Computing") for m in messages), float(kept[0].states.float().sum())))


def test_of_two_processes_one_computes_and_both_read_the_same(
    mini: str, tmp_path: Path, sentences: Pieces
) -> None:
    both, results = fresh.Barrier(2), fresh.Queue()
    processes = [
        fresh.Process(target=keep_together, args=(both, results, sentences, mini, tmp_path)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    (one, first), (other, second) = results.get(timeout=300), results.get(timeout=300)
    for process in processes:
        process.join()
    assert one + other == 1 and first == second


def test_after_a_kill_nothing_half_is_read(
    mini: str, tmp_path: Path, folder: Path, sentences: Pieces
) -> None:
    process = fresh.Process(target=keep, args=(sentences, mini, 4), kwargs={"folder": tmp_path})
    process.start()
    kept = tmp_path / "kept"
    while not any(part.stat().st_size > 1000 for part in kept.glob("*.part")):
        assert process.is_alive()
        time.sleep(0.001)
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert [*kept.glob("*.part")] and not [*kept.glob("*.npy")]
    ours, whole = (keep(sentences, mini, 4, folder=place) for place in (tmp_path, folder))
    assert torch.equal(ours.states, whole.states)
    assert not [*kept.glob("*.part")]
    assert told(lambda: keep(sentences, mini, 4, folder=tmp_path)) == []


def test_a_file_cut_short_is_no_states(mini: str, tmp_path: Path, stories: Pieces) -> None:
    keep(stories, mini, 1, folder=tmp_path)
    (path,) = (tmp_path / "kept").glob("*.npy")
    with path.open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(DataCorrupt, match=r"is damaged .*Delete it; the next run computes it again"):
        keep(stories, mini, 1, folder=tmp_path)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(mini: str, tmp_path: Path, stories: Pieces) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(DiskFull, match=rf"No room left to write .*\({os.strerror(errno.EFBIG)}\)"):
            keep(stories, mini, 1, folder=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*(tmp_path / "kept").glob("*.npy")] and not [*(tmp_path / "kept").glob("*.part")]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_states_that_fit_move_and_others_move_with_their_batch(
    mini: str, folder: Path, stories: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, cuda = keep(stories, mini, 4, folder=folder), torch.device("cuda", 0)
    wanted = kept.rows(torch.tensor([3, 1])).padded
    for share, place in ((0.5, "cuda"), (0.0, "cpu")):
        monkeypatch.setattr("networks.transformer.kept.SHARE", share)
        there = replace(kept, states=kept.states.clone()).to(cuda)  # a copy that is there is taken
        batch = there.rows(torch.tensor([3, 1]))
        assert there.states.device.type == place and batch.padded.device == batch.device == cuda
        assert torch.equal(batch.padded.cpu(), wanted)


def test_the_parts_of_the_data_share_one_copy_of_their_states(
    mini: str, folder: Path, stories: Pieces
) -> None:
    kept = keep(stories, mini, 4, folder=folder)
    parts = [stories.inputs(torch.tensor(texts), kept=kept) for texts in ([0, 1], [2, 3])]
    there = [part.to(torch.device("meta")) for part in parts]
    assert there[0].states is there[1].states and there[0].states.device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_states_are_pooled_where_layers_run_on_a_gpu(mini: str, tmp_path: Path, stories: Pieces) -> None:
    kept = keep(stories, mini, 6, folder=tmp_path, pooling="pooler")
    with torch.no_grad():
        wanted = Encoder(mini, trained="frozen", pooling="pooler")(stories.inputs(torch.arange(8)))
    torch.testing.assert_close(kept.padded.squeeze(1), wanted, atol=HALF, rtol=HALF)


def test_states_stay_mapped_until_a_batch_takes_them(mini: str, folder: Path, stories: Pieces) -> None:
    kept = keep(stories, mini, 4, folder=folder)
    moved = replace(kept).to(torch.device("cpu"))
    assert isinstance(moved.states, Tensor) and moved.states.data_ptr() == kept.states.data_ptr()
    assert moved.rows(torch.tensor([0])).states.data_ptr() != kept.states.data_ptr()
