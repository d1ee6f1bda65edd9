"""Inputs with names: how they are cut and moved, and the product of sparse rows with a layer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from torch import Tensor, nn

from networks.inputs import Sequences, SparseRows, WordPieces
from networks.mlp import LabelMLP

D = 40


def sparse(x: Tensor) -> SparseRows:
    """The rows without their zeros."""
    rows = csr_array(x.numpy())
    parts = (torch.from_numpy(part) for part in (rows.data, rows.indices, rows.indptr))
    values, columns, offsets = parts
    return SparseRows(values, columns.long(), offsets.long(), x.shape[1])


def few(num_rows: int, seed: int = 0) -> Tensor:
    """Rows of which a tenth is not 0, the second of them empty."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(num_rows, D, generator=draw, dtype=torch.float64)
    x *= torch.rand(num_rows, D, generator=draw) < 0.1
    x[1:2] = 0
    return x


def dense(x: SparseRows) -> Tensor:
    return x.times(torch.eye(D, dtype=x.values.dtype))


@given(st.integers(1, 8), st.data())
def test_cutting_sparse_rows_is_cutting_the_matrix(num_rows: int, data: st.DataObject) -> None:
    x = few(num_rows, num_rows)
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, num_rows - 1), max_size=9)), dtype=torch.long)
    rows = sparse(x).rows(chosen)
    assert len(rows) == len(chosen) and len(sparse(x)) == num_rows
    torch.testing.assert_close(dense(rows), x[chosen])


def test_a_layer_of_sparse_rows_is_that_of_the_matrix_with_its_derivatives() -> None:
    torch.manual_seed(0)
    x, weight = few(6), torch.randn(3, D, dtype=torch.float64, requires_grad=True)
    rows = sparse(x)
    torch.testing.assert_close(rows.times(weight), x @ weight.T)
    ahead = torch.randn(6, 3, dtype=torch.float64)
    ours, theirs = (
        torch.autograd.grad((out.tanh() * ahead).sum(), weight) for out in (rows.times(weight), x @ weight.T)
    )
    torch.testing.assert_close(ours, theirs)
    assert ours[0].stride() == weight.stride()  # else it would be copied
    assert torch.autograd.gradcheck(rows.times, weight)
    assert torch.autograd.gradgradcheck(lambda w: rows.times(w).square(), weight)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_network_of_sparse_rows_is_that_of_the_matrix(num_layers: int) -> None:
    torch.manual_seed(0)
    net, x = LabelMLP(D, 4, num_layers=num_layers, width=5).double(), few(6)
    results = []
    for inputs in (x, sparse(x)):
        loss = net(inputs).square().sum()
        results.append([loss, *torch.autograd.grad(loss, list(net.parameters()))])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_no_row_of_sparse_features_is_made_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer for a million columns would have rows of four megabytes."""
    wide = SparseRows(torch.ones(3), torch.tensor([5, 999_999, 5]), torch.tensor([0, 2, 3]), 1_000_000)
    layer = nn.Linear(1_000_000, 2, bias=False)
    seen: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.numel()) or t, lambda t: t):
        out = wide.times(layer.weight)
    torch.testing.assert_close(out, torch.stack([layer.weight[:, [5, 999_999]].sum(1), layer.weight[:, 5]]))
    assert not seen  # nothing is kept for the backward pass
    out.sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.count_nonzero() == 4


def test_pieces_of_words_are_cut_to_the_longest_of_a_batch() -> None:
    attention = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]]).bool()
    ids = torch.arange(12).view(3, 4)
    pieces = WordPieces(ids, attention, ids % 2)
    short = pieces.rows(torch.tensor([2, 0]))
    assert torch.equal(short.ids, ids[[2, 0], :2]) and torch.equal(short.segments, ids[[2, 0], :2] % 2)
    assert torch.equal(short.attention, attention[[2, 0], :2]) and len(short) == 2
    assert pieces.to(torch.device("meta")).device.type == "meta"


def test_sequences_without_an_example_or_a_position_are_cut() -> None:
    nothing = Sequences(torch.zeros(2, 3, 1), torch.zeros(2, 3, dtype=torch.bool))
    assert nothing.rows(torch.tensor([1, 0])).mask.shape == (2, 0)
