"""What an energy is taught from the truth and from guesses.

Energies are low for good answers. K guesses an example; B examples.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Rows = Float[Tensor, " B"]
GuessRows = Float[Tensor, "K B"]


def margin(true_energy: Rows, guess_energy: GuessRows, cost: GuessRows) -> Float[Tensor, ""]:
    """Structured hinge: mean of [cost - E(guess) + E(true)]_+.   [SEAL eq. 6]"""
    return (cost - guess_energy + true_energy).clamp_min(0).mean()


def perceptron(true_energy: Rows, guess_energy: GuessRows) -> Float[Tensor, ""]:
    """The hinge without a cost: mean of [E(true) - E(guess)]_+.   [InfNet+ eq. 6]"""
    return (true_energy - guess_energy).clamp_min(0).mean()


def violation(guess_energy: GuessRows, cost: GuessRows) -> Float[Tensor, ""]:
    """What a cost-augmented guesser climbs: mean of cost - E(guess), with nothing cut off at 0.

    [InfNet+ §4.1, l_1]
    """
    return (cost - guess_energy).mean()


def regression(guess_energy: GuessRows, quality: GuessRows) -> Float[Tensor, ""]:
    """Teach sigmoid(-E) the quality of each guess, by cross-entropy, summed over guesses and examples.

    -q log sigmoid(-E) - (1 - q) log(1 - sigmoid(-E))   [SEAL eq. 7 with its second term mended; DVN eq. 3]

    The sum is the released reduction; it matters only where gradients are clipped.
    """
    return F.binary_cross_entropy_with_logits(-guess_energy, quality, reduction="sum")


def ranking(true_score: Rows, noise_score: GuessRows) -> Float[Tensor, ""]:
    """Pick the truth from among K noise answers: -log softmax of its score, summed over examples.

    Scores are -E, less log P_N for noise-contrastive estimation. The truth is in the denominator too, so
    equal scores cost log(K + 1).   [SEAL eq. 8 with its sum begun at k = 0, eq. 9]
    """
    denominator = noise_score.logsumexp(0).logaddexp(true_score)
    return (denominator - true_score).sum()


def contrastive(true_energy: Rows, guess_energy: GuessRows, cost: GuessRows) -> Float[Tensor, ""]:
    """Mean of log sum_k exp(cost_k - E(guess_k) + E(true)), the truth among the guesses at cost 0.

    [Implicit L_CD, with the minus that its print lacks]

    So it is never below 0, and softplus(cost - E(guess) + E(true)), a smooth hinge, for a single guess.
    """
    ahead = cost - guess_energy + true_energy
    return torch.cat([torch.zeros_like(ahead[:1]), ahead]).logsumexp(0).mean()
