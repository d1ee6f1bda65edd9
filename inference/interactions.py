"""Interactions of pairs: what an energy has learned, from its derivatives, and statistics of the data.

Shapes: B rows, L labels, G patterns, T positions, S tags, R and Q pairs, N values of a grid.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from energies.mlc import LabelMixEnergy

CHI_SQUARE = 3.84  # of one degree of freedom, at 5 %


@torch.no_grad()
def label_interactions(energy: LabelMixEnergy, y: Float[Tensor, "B L"]) -> Float[Tensor, "L L"]:
    """How much two labels lower the energy together: minus the mean Hessian of E in y, with a diagonal of 0.

    For E = - v . softplus(M y + m) it is M diag(v * mean sigma'(M y + m)) M^T.   [Implicit Figure 1]
    """
    gate = torch.sigmoid(y @ energy.patterns + energy.bias)
    curvature = (gate * (1 - gate)).mean(0) * energy.weights
    return ((energy.patterns * curvature) @ energy.patterns.T).fill_diagonal_(0)


@torch.no_grad()
def pair_gradients(
    energy: LabelMixEnergy, y: Float[Tensor, "B L"], pairs: Int[Tensor, "R 2"], grid: Float[Tensor, " N"]
) -> Float[Tensor, "R N N"]:
    """dE/dy_k on a grid of values of y_i and y_k, for each pair (i, k), averaged over rows.   [SEAL Figure 2]

    The other labels are those of y. The first dimension N is that of y_i, the second that of y_k.
    """
    hidden = y @ energy.patterns + energy.bias  # (B, G)
    surfaces = []
    for i, k in pairs.tolist():
        ours, theirs = energy.patterns[i], energy.patterns[k]
        others = hidden - y[:, [i]] * ours - y[:, [k]] * theirs
        moved = others + grid.view(-1, 1, 1) * theirs  # (N, B, G)
        gates = torch.stack([torch.sigmoid(moved + value * ours).mean(1) for value in grid])  # (N, N, G)
        surfaces.append(-(gates * energy.weights) @ theirs)
    return torch.stack(surfaces) if surfaces else grid.new_zeros(0, len(grid), len(grid))


def cross_entropy_gradient(grid: Float[Tensor, " N"]) -> Float[Tensor, "N N"]:
    """d/dy_k of - log y_k, the cross-entropy if the truth has label k, for any y_i.   [SEAL app. A]"""
    return -grid.reciprocal().expand(len(grid), -1)


def cooccurrences(y: Shaped[Tensor, "B L"]) -> Float[Tensor, "L L"]:
    """The number of rows with both labels; on the diagonal the number with one label."""
    sets = y.double()
    return sets.T @ sets


def correlation(y: Shaped[Tensor, "B L"]) -> Float[Tensor, "L L"]:
    """Correlation (phi) of two labels over rows; NaN for a label that all rows have, or none.

    phi = (p_ik - p_i p_k) / sqrt(p_i (1 - p_i) p_k (1 - p_k)). Unlike a count it is not large just because
    both labels are frequent. Unlike the lift it is defined for labels that never occur together.
    """
    joint = cooccurrences(y) / len(y)
    share = joint.diagonal()
    scale = (share * (1 - share)).sqrt()
    scale = torch.where(scale > 0, scale, torch.nan)
    return (joint - share.outer(share)) / scale.outer(scale)


def tag_pairs(y: Shaped[Tensor, "B T S"]) -> Float[Tensor, "S S"]:
    """How often a tag is followed by another. Tags are one-hot, zero where padded."""
    tags = y.double()
    return torch.einsum("bts,btu->su", tags[:, :-1], tags[:, 1:])


def log_lift(
    joint: Float[Tensor, "S S"], first: Float[Tensor, " S"], second: Float[Tensor, " S"], total: int
) -> Float[Tensor, "S S"]:
    """Pointwise mutual information from counts: log p(a, b) / p(a) p(b); NaN for pairs that never occur."""
    lift = (joint * total / first.outer(second)).log()
    return torch.where(joint > 0, lift, torch.nan)


def doubly_centred(table: Float[Tensor, "S S"]) -> Float[Tensor, "S S"]:
    """A matrix without its row and column means, which unary scores of a chain can express as well."""
    return table - table.mean(0, keepdim=True) - table.mean(1, keepdim=True) + table.mean()


def rank_correlation(a: Float[Tensor, "*n"], b: Float[Tensor, "*n"], where: Bool[Tensor, "*n"]) -> float:
    """Spearman's rank correlation over the entries where both are finite; NaN for fewer than three."""
    from scipy.stats import spearmanr

    known = where & a.isfinite() & b.isfinite()
    if int(known.sum()) < 3:
        return float("nan")
    return float(spearmanr(a[known].numpy(), b[known].numpy()).statistic)


def cluster_order(likeness: Float[Tensor, "L L"]) -> Int[Tensor, " L"]:
    """An order with similar labels next to each other: average linkage on 1 - likeness."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(likeness) < 3:
        return torch.arange(len(likeness))
    distance = (1 - likeness).clamp_min(0).numpy()
    np.fill_diagonal(distance, 0)
    near = linkage(squareform((distance + distance.T) / 2, checks=False), "average", optimal_ordering=True)
    return torch.from_numpy(leaves_list(near)).long()


def unassociated_like(
    pairs: Int[Tensor, "R 2"], y: Shaped[Tensor, "B L"], related: Bool[Tensor, "L L"], *, least: int
) -> Int[Tensor, "Q 2"]:
    """For each pair (i, k) a control pair (j, k), in which j is not associated with k.

    j is not `related` to k, and their correlation over rows is not significant (chi-square at 5 %). Among
    such labels with at least `least` rows it is the one nearest to i in frequency. Pairs without such a j are
    left out.
    """
    counts, phi = y.double().sum(0), correlation(y)
    free = (phi.square() * len(y) < CHI_SQUARE) & ~related & (counts >= least).unsqueeze(1)
    found = []
    for i, k in pairs.tolist():
        candidates = free[:, k].nonzero().squeeze(1)
        if len(candidates):
            apart = (counts[candidates] - counts[i]).abs()
            found.append([int(candidates[apart.argmin()]), k])
    return torch.tensor(found, dtype=torch.long).view(-1, 2)
