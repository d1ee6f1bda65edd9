"""A network that scores the tags of each token independently of its neighbours.

Shapes: B sentences, T tokens, C columns of ids, S tags.
"""

from jaxtyping import Float
from torch import Tensor, nn

from networks.inputs import Sequences
from networks.layers import Features
from networks.sizes import at_least


class LinearTagger(nn.Module):
    """Two linear layers with ReLU between, for each token alone.                [Scaling §6, Table 2]

    Shapes:
        x: ids (B, T, C).   returns: (B, T, S), 0 where padded.
    """

    def __init__(self, features: Features, num_tags: int, *, width: int = 300) -> None:
        super().__init__()
        at_least(1, num_tags=num_tags, width=width)
        self.features = features
        self.layers = nn.Sequential(nn.Linear(features.size, width), nn.ReLU(), nn.Linear(width, num_tags))

    def forward(self, x: Sequences) -> Float[Tensor, "B T S"]:
        real = x.mask
        scores = self.layers(self.features(Sequences(x.values[real], real[real])))
        return scores.new_zeros(*real.shape, scores.shape[-1]).index_put((real,), scores)
