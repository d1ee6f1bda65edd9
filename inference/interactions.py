"""What an energy has learned of pairs: second derivatives, gradients over two labels; and what the data say.

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
    """How much two labels lower the energy together: - mean over rows of d2E/dy dy', with a diagonal of 0.

    With E = - v . softplus(M y + m) it is M diag(v * mean sigma'(M y + m)) M^T.   [Implicit Figure 1]
    """
    gate = torch.sigmoid(y @ energy.patterns + energy.bias)
    bend = (gate * (1 - gate)).mean(0) * energy.weights
    return ((energy.patterns * bend) @ energy.patterns.T).fill_diagonal_(0)


@torch.no_grad()
def pair_gradients(
    energy: LabelMixEnergy, y: Float[Tensor, "B L"], pairs: Int[Tensor, "R 2"], grid: Float[Tensor, " N"]
) -> Float[Tensor, "R N N"]:
    """dE/dy_k where y_i and y_k take the values of a grid, for each pair (i, k).   [SEAL Figure 2]

    The other labels stand as in y; the mean over rows. The first N is y_i's, the second y_k's.
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
    """d/dy_k of - log y_k, the cross-entropy where the truth has label k: y_i has no say.   [SEAL app. A]"""
    return -grid.reciprocal().expand(len(grid), -1)


def together(y: Shaped[Tensor, "B L"]) -> Float[Tensor, "L L"]:
    """How many rows have both labels; on the diagonal how many have the one."""
    sets = y.double()
    return sets.T @ sets


def correlation(y: Shaped[Tensor, "B L"]) -> Float[Tensor, "L L"]:
    """Correlation (phi) of two labels over rows; NaN for a label that all rows have, or none.

    phi = (p_ik - p_i p_k) / sqrt(p_i (1 - p_i) p_k (1 - p_k)). Unlike a count it is not large just because
    both labels are frequent, and unlike the lift it is there for labels that never meet.
    """
    joint = together(y) / len(y)
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
    """How much more often two meet than by chance: log p(a, b) / p(a) p(b) from counts; NaN if never."""
    lift = (joint * total / first.outer(second)).log()
    return torch.where(joint > 0, lift, torch.nan)


def centred(table: Float[Tensor, "S S"]) -> Float[Tensor, "S S"]:
    """A table less the means of its rows and columns, which a chain's unary scores can stand in for."""
    return table - table.mean(0, keepdim=True) - table.mean(1, keepdim=True) + table.mean()


def rank_correlation(a: Float[Tensor, "*n"], b: Float[Tensor, "*n"], where: Bool[Tensor, "*n"]) -> float:
    """Spearman's, over the entries where both are known; NaN for fewer than three of them."""
    from scipy.stats import spearmanr

    known = where & a.isfinite() & b.isfinite()
    if int(known.sum()) < 3:
        return float("nan")
    return float(spearmanr(a[known].numpy(), b[known].numpy()).statistic)


def cluster_order(likeness: Float[Tensor, "L L"]) -> Int[Tensor, " L"]:
    """An order that puts labels that are alike next to each other: average linkage on 1 - likeness."""
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
    """For each pair (i, k) another (j, k) to compare it with, in which j has nothing to do with k.

    j is not `related` to k, their correlation over rows is not significant (chi-square at 5 %), and of the
    labels of at least `least` rows for which that is so, it is the one about as frequent as i. Pairs without
    such a j are left out.
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
