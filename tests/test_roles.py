"""Semantic roles: the attention energy, constrained decoding, srl-eval's scores, and real training runs."""

import itertools
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.readers.propbank import read_propositions
from energies.constraints import bio_tags
from energies.role_attention import LocalTagEnergy, RoleAttention, position_code, times
from energies.spaces import TagSequences
from experiments.plan.spec import read_table
from experiments.run.cli import TrainCLI
from inference.guesses import GuessContext, Sampled
from inference.spans import UniqueSpans, WellFormed
from lightning_modules.metrics.roles import CORE, RoleScores
from losses.objectives import Guesses, NCERanking
from networks.pretrained import load_part
from role_parts import DATA, first_sentences, missing, options
from scheme_runs import configs

KINDS = ["A", "B", "C"]
TAGS = bio_tags(KINDS)
ROLES = ["ARG0", "ARG1", "V", "C-ARG1", "C-ARG0", "R-ARG0", "C-V", "ARGM-TMP"]
all_is_here = pytest.mark.skipif(bool(missing()), reason=missing())


def one_hot(tags: Sequence[Sequence[str]], names: list[str], mask: Tensor) -> Tensor:
    numbers = torch.tensor([[names.index(tag) for tag in row] for row in tags])
    return F.one_hot(numbers, len(names)).double() * mask.unsqueeze(-1)


def mask_of(lengths: Sequence[int], size: int) -> Tensor:
    return torch.arange(size) < torch.tensor(lengths).unsqueeze(1)


# The energy


def test_an_attention_energy_worked_by_hand() -> None:
    """Two tags, width 1: q = k = v = first entry of y + code; output c = (v, 2 v + 1)."""
    energy = RoleAttention(2, width=1, dropout=0.0).double()
    with torch.no_grad():
        energy.project.weight.copy_(torch.tensor([[1.0, 0], [1, 0], [1, 0]]))
        energy.project.bias.zero_()
        energy.output.weight.copy_(torch.tensor([[1.0], [2]]))
        energy.output.bias.copy_(torch.tensor([0.0, 1]))
    y = torch.tensor([[[1.0, 0], [0, 1]]], dtype=torch.float64)
    first, second = 1 + math.sin(0), 0 + math.sin(1)  # one frequency, 1
    total = 0.0
    for query in (first, second):
        weights = [math.exp(query * key / math.sqrt(2)) for key in (first, second)]
        value = (weights[0] * first + weights[1] * second) / sum(weights)
        total += max(value, 2 * value + 1)
    assert energy(torch.zeros(1), y).item() == pytest.approx(-total, rel=1e-12)


def plain(energy: RoleAttention, y: Tensor, mask: Tensor) -> Tensor:
    """The formula for one answer (T, S), position by position, with the code in the input."""
    length = int(mask.sum())
    q, k, v = energy.project(y[:length] + position_code(length, y.shape[-1], like=y)).chunk(3, -1)
    total = y.new_zeros(())
    for t in range(length):
        weights = torch.stack([q[t] @ k[s] / math.sqrt(y.shape[-1]) for s in range(length)]).softmax(0)
        total = total + energy.output(weights @ v).max()
    return -total


@pytest.mark.parametrize("relaxed", [False, True])
def test_samples_padding_and_the_formula_agree(relaxed: bool) -> None:
    energy = RoleAttention(7, width=5).double().eval()
    mask = mask_of([4, 1, 0, 6], 6)
    y = torch.rand(3, 2, 4, 6, 7, dtype=torch.float64)
    y = (y / y.sum(-1, keepdim=True) if relaxed else F.one_hot(y.argmax(-1), 7).double()) * mask.unsqueeze(-1)
    at_once = energy(torch.zeros(4), y, mask)
    assert at_once.shape == (3, 2, 4)
    for k, j, b in itertools.product(range(3), range(2), range(4)):
        torch.testing.assert_close(at_once[k, j, b], plain(energy, y[k, j, b], mask[b]))
    longer = torch.cat(
        [y, torch.rand(3, 2, 4, 3, 7, dtype=torch.float64)], -2
    )  # what padding holds is hidden
    wider = torch.cat([mask, torch.zeros(4, 3, dtype=torch.bool)], -1)
    torch.testing.assert_close(energy(torch.zeros(4), longer, wider), at_once)
    torch.testing.assert_close(energy(torch.zeros(4), y[0, 0, 3:], None), at_once[0, 0, 3:])


def test_gradients_reach_relaxed_answers_and_parameters() -> None:
    energy = RoleAttention(3, width=4).double().eval()
    mask = mask_of([2, 3], 3)
    y = torch.rand(2, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: energy(torch.zeros(2), y, mask), y)
    (gradient,) = torch.autograd.grad(energy(torch.zeros(2), y, mask).sum(), y)
    assert gradient[mask.expand(2, 2, 3)].abs().sum() > 0 and not gradient[:, 0, 2].any()
    found = energy.given(torch.zeros(2), mask).value_and_gradient(y)[1]
    torch.testing.assert_close(found, gradient)


def test_looking_tags_up_is_the_product() -> None:
    weight = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    y = F.one_hot(torch.randint(0, 5, (2, 3, 4)), 5).double()
    y[0, 0, 1:] = 0
    for answers in (y, y / 2, y + 1, -y):
        of_table, of_product = times(answers, weight), F.linear(answers, weight)
        torch.testing.assert_close(of_table, of_product)
        slope = torch.randn_like(of_product)
        gradients = [torch.autograd.grad(out, weight, slope)[0] for out in (of_table, of_product)]
        torch.testing.assert_close(*gradients)


def test_the_position_code_of_an_odd_size_ends_with_0() -> None:
    code = position_code(3, 5, like=torch.zeros((), dtype=torch.float64))
    assert code.shape == (3, 5) and not code[:, -1].any()
    expected = [math.sin(2), math.sin(2e-4), math.cos(2), math.cos(2e-4)]
    torch.testing.assert_close(code[2, :4], torch.tensor(expected, dtype=torch.float64))


def test_the_local_energy_is_a_sum_over_real_positions() -> None:
    mask = mask_of([3, 1], 3)
    x, y = torch.randn(2, 3, 4, dtype=torch.float64), torch.rand(5, 2, 3, 4, dtype=torch.float64)
    energy = LocalTagEnergy(nn.Identity())
    expected = -((x * y) * mask.unsqueeze(-1)).sum((-1, -2))
    torch.testing.assert_close(energy(x, y, mask), expected)
    given = energy.given(x, mask)
    value, gradient = given.value_and_gradient(y)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, -(x * mask.unsqueeze(-1)).expand_as(y))
    torch.testing.assert_close(given.detached(y), expected)


# Noise-contrastive estimation on sequences   [SEAL eq. 9]; summed over a batch


def test_noise_and_its_probability_are_hidden_where_padded() -> None:
    mask = mask_of([3, 1], 3)
    space = TagSequences(4).over(mask)
    logits = torch.randn(2, 3, 4, dtype=torch.float64)
    y = space.decode(torch.rand(2, 3, 4, dtype=torch.float64))
    objective = NCERanking()
    context = GuessContext(RoleAttention(4), objective, space, torch.zeros(2), y, logits)
    guesses = Sampled(num_samples=50)(context)
    assert guesses.y.shape == (50, 2, 3, 4)
    assert torch.equal(guesses.y.sum(-1), mask.double().expand(50, 2, 3))
    of_first = (logits.log_softmax(-1) * guesses.y)[..., 0, :].sum(-1)
    torch.testing.assert_close(space.log_prob(logits, guesses.y)[:, 1], of_first[:, 1])

    def matched(x: Tensor, answers: Tensor) -> Tensor:
        return -space.log_prob(logits, answers) - 3.0

    loss = objective(matched, space, torch.zeros(2), y, guesses)
    assert float(loss) == pytest.approx(2 * math.log(51))  # K + 1 ways, two sentences
    other = logits.clone()
    other[1, 1:] += 5.0  # padding
    assert float(objective(matched, space, torch.zeros(2), y, Guesses(guesses.y, other))) == pytest.approx(
        float(loss)
    )


# Decoding


def well_formed(tags: Sequence[str]) -> bool:
    return all(
        tag[0] != "I" or before[2:] == tag[2:] for before, tag in zip(["O", *tags], tags, strict=False)
    )


@pytest.mark.parametrize("trial", range(8))
def test_decoding_finds_what_counting_finds(trial: int) -> None:
    generator = torch.Generator().manual_seed(trial)
    size = 5
    spread = torch.randn(4, size, 7, dtype=torch.float64, generator=generator) * 2
    probabilities = (spread + torch.tensor([0, 2.5, 0, 2.5, 0, 0, 0])).softmax(-1)
    mask = mask_of([5, 4, 2, 1], size)
    found, free = UniqueSpans(KINDS, ["A", "B"])(probabilities, mask), WellFormed(KINDS)(probabilities, mask)
    assert found.exact.all() and free.exact.all()
    for row, length in enumerate(mask.sum(1).tolist()):
        answers = [c for c in itertools.product(range(7), repeat=length) if well_formed([TAGS[k] for k in c])]
        unique = [c for c in answers if all(c.count(TAGS.index(f"B-{kind}")) <= 1 for kind in "AB")]
        for decoded, allowed in ((free, answers), (found, unique)):
            scores = {c: sum(float(probabilities[row, t, k]) for t, k in enumerate(c)) for c in allowed}
            answer = tuple(decoded.tags[row, :length].tolist())
            assert scores[answer] == pytest.approx(max(scores.values()), abs=1e-12)
            assert float(decoded.score[row]) == pytest.approx(scores[answer], abs=1e-12)


def test_a_search_without_room_keeps_the_constraint_and_says_it_may_not_be_best() -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = (torch.randn(3, 24, 7, generator=generator) * 0.1).softmax(-1)
    probabilities[..., 1] += 0.3  # B-A everywhere
    mask = torch.ones(3, 24, dtype=torch.bool)
    best, hasty = (UniqueSpans(KINDS, ["A"], nodes)(probabilities, mask) for nodes in (5000, 3))
    assert best.exact.all() and not hasty.exact.any()
    for decoded in (best, hasty):
        assert (decoded.tags == TAGS.index("B-A")).sum(1).le(1).all()
    assert (hasty.score <= best.score + 1e-5).all()


def test_unique_kinds_must_be_kinds() -> None:
    with pytest.raises(ValueError, match="unique has ARG7"):
        UniqueSpans(KINDS, ["A", "ARG7"])


# Scores


def arguments(tags: Sequence[str]) -> set:
    """What srl-eval counts: role and all spans; C-X continues the last X, or is one; V is left out."""
    spans, begun = [], None
    for place, tag in enumerate([*tags, "O"]):
        if begun and not (tag[0] == "I" and tag[2:] == begun[0]):
            spans.append((*begun, place - 1))
            begun = None
        if tag != "O" and begun is None:
            begun = (tag[2:], place)
    last: dict[str, tuple] = {}
    found = []
    for role, start, end in spans:
        if role.startswith("C-") and role[2:] in last:
            last[role[2:]][1].append((start, end))
            continue
        last[role.removeprefix("C-")] = (role.removeprefix("C-"), [(start, end)])
        found.append(last[role.removeprefix("C-")])
    return {(role, tuple(places)) for role, places in found if role != "V"}


def drawn(draw: random.Random, length: int) -> list[str]:
    tags: list[str] = []
    for _ in range(length):
        before = tags[-1] if tags else "O"
        inside = [f"I-{before[2:]}"] * 6 if before != "O" else []
        tags.append(draw.choice(["O", *(f"B-{role}" for role in ROLES), *inside]))
    return tags


def changed(draw: random.Random, tags: list[str]) -> list[str]:
    tags = list(tags)
    for _ in range(draw.randint(0, 2)):
        place = draw.randrange(len(tags))
        tags[place] = draw.choice(["O", *(f"B-{role}" for role in ROLES)])
        if place + 1 < len(tags) and tags[place + 1][0] == "I":
            tags[place + 1] = "B" + tags[place + 1][1:]
    return tags


@pytest.mark.parametrize("trial", range(40))
def test_arguments_count_as_srl_eval_counts_them(trial: int) -> None:
    draw = random.Random(trial)
    size = draw.randint(1, 10)
    gold = [drawn(draw, size) for _ in range(6)]
    guess = [changed(draw, tags) for tags in gold]
    lengths = [draw.randint(1, size) for _ in gold]
    mask, names, scores = mask_of(lengths, size), bio_tags(ROLES), RoleScores(ROLES)
    scores.update(one_hot(guess, names, mask), one_hot(gold, names, mask), mask)
    of = [(arguments(g[:n]), arguments(p[:n])) for g, p, n in zip(gold, guess, lengths, strict=True)]
    counts = [sum(len(g & p) for g, p in of), sum(len(p) for _, p in of), sum(len(g) for g, _ in of)]
    assert scores.counts.tolist() == counts
    found = scores.compute()
    twice = [any(p[:n].count(f"B-{r}") > 1 for r in CORE) for p, n in zip(guess, lengths, strict=True)]
    assert float(found["ucr"]) == pytest.approx(sum(twice) / 6) and float(found["bio"]) == 0


def test_scores_of_one_predicate_by_hand() -> None:
    names = bio_tags(ROLES)
    gold = ["B-ARG0", "B-V", "B-ARG1", "I-ARG1", "O", "B-C-ARG1"]
    mask = torch.ones(1, 6, dtype=torch.bool)
    scores = RoleScores(ROLES)
    part = [*gold[:5], "O"]  # ARG1 lacks its second span
    scores.update(one_hot([part], names, mask), one_hot([gold], names, mask), mask)
    assert scores.counts.tolist() == [1, 2, 2]
    broken = one_hot([["B-ARG0", "B-V", "I-ARG1", "O", "B-ARG0", "O"]], names, mask)
    scores.update(broken, one_hot([gold], names, mask), mask)
    found = {name: float(value) for name, value in scores.compute().items()}
    assert found["ucr"] == 0.5 and found["gold_ucr"] == 0 and found["bio"] == 0.5 and found["exact"] == 1


@all_is_here
def test_gold_tags_decode_to_themselves_and_score_1() -> None:
    part = read_propositions(first_sentences("test", 200), where="test.tsv")
    names = bio_tags(DATA["roles"])
    lengths = [len(tags) for tags in part.tags]
    size = max(lengths)
    mask = mask_of(lengths, size)
    y = one_hot([[*tags, *["O"] * (size - len(tags))] for tags in part.tags], names, mask)
    for decoder in (None, UniqueSpans(DATA["roles"], CORE)):
        scores = RoleScores(DATA["roles"], decoder)
        scores.update(y, y, mask)
        found = scores.compute()
        assert [float(found[name]) for name in ("f1", "ucr", "gold_ucr", "bio", "exact")] == [1, 0, 0, 0, 1]


# Real runs

SMALL = ["--trainer.max_epochs=1", "--data.batch_size=4", "--data.eval_batch_size=16"]


def trained(folder: Path, row: str, *more: str) -> TrainCLI:
    """A row of the table, on few sentences; for three batches."""
    layers = read_table("seal_srl").layers(row, "srl")
    options_ = [*configs(*layers), *options(), *SMALL, "--trainer.limit_train_batches=3", *more]
    cli = TrainCLI(options_, run_dir=str(folder / row))
    cli.trainer.fit(cli.model, cli.datamodule)
    return cli


@all_is_here
def test_rows_of_the_table_train_and_hand_on_their_networks(tmp_path: Path) -> None:
    ce = trained(tmp_path, "ce")
    assert ce.model.steps == {"task": 3}
    best = str(tmp_path / "ce" / "checkpoints" / "best.ckpt")
    again = trained(tmp_path, "ce_unique", f"--model.task_net.init_args.checkpoint={best}")
    scores = again.trainer.callback_metrics
    assert float(scores["val/ucr"]) == 0 and float(scores["val/exact"]) == 1
    assert scores["val/bio"] == ce.trainer.callback_metrics["val/bio"]
    batch = next(iter(ce.datamodule.val_dataloader()))
    ce.model.eval(), again.model.eval()
    torch.testing.assert_close(ce.model.predict(batch), again.model.predict(batch))
    energy = trained(tmp_path, "nce_gbi", f"--model.guesser.init_args.checkpoint={best}")
    assert energy.model.steps == {"energy": 3}
    static = f"--model.energy.init_args.checkpoint={tmp_path}/nce_gbi/checkpoints/best.ckpt"
    assert trained(tmp_path, "static_nce", static).model.steps == {"task": 3}


@all_is_here
def test_seal_dynamic_trains_both_networks_over_the_frozen_layers(tmp_path: Path) -> None:
    layers = read_table("seal_srl").layers("dynamic_nce", "srl")
    cli = TrainCLI([*configs(*layers), *options(), *SMALL], run_dir=str(tmp_path))
    before = {name: p.detach().clone() for name, p in cli.model.named_parameters()}
    cli.trainer.limit_train_batches = 3
    cli.trainer.fit(cli.model, cli.datamodule)
    assert cli.model.steps == {"energy": 3, "task": 3}
    still = [name for name, p in cli.model.named_parameters() if torch.equal(before[name], p)]
    assert still == []  # only what trains is a parameter: the frozen layers are shared
    net, energy = (load_part(f"{tmp_path}/checkpoints/best.ckpt", part) for part in ("task_net", "energy"))
    batch = next(iter(cli.datamodule.val_dataloader()))
    cli.model.eval(), net.eval(), energy.eval()
    torch.testing.assert_close(net(batch.inputs), cli.model.task_net(batch.inputs))
    found = energy(batch.inputs, batch.y, batch.mask)
    assert found.shape == (len(batch.y),) and found.isfinite().all()
