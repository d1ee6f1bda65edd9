"""Feed-forward networks for multi-label classification, and heads that take the truth as input.

Shapes: B examples, D features, H hidden units, L labels.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from networks.inputs import Inputs, SparseRows
from networks.layers import Dropout, Features
from networks.sizes import at_least


class MLP(Features):
    """Layers of linear, softplus, dropout; no dropout after the last layer.

    Initialisation of the released code: weights Kaiming-uniform (ReLU gain, fan-in), biases
    0.   [SEAL code, MLC]

    With sparse rows the first layer is one sparse product, forward and backward.

    Shapes:
        x: (B, D).   returns: (B, H).
    """

    def __init__(
        self, num_features: int, *, num_layers: int = 2, width: int = 400, dropout: float = 0.0
    ) -> None:
        super().__init__()
        at_least(1, num_features=num_features, num_layers=num_layers, width=width)
        self.layers = hidden_layers(num_features, [width] * num_layers, dropout)
        self.size = width

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        if isinstance(x, Tensor):
            return self.layers(x)
        first, *further = self.layers
        assert isinstance(first, nn.Linear)
        h = x.times(first.weight) + first.bias
        for layer in further:
            h = layer(h)
        return h


class EncodedLabels(nn.Module):
    """One number per label from the features of another network, such as a text encoder.   [SEAL C+]

    Layers of linear, softplus, dropout as in MLP, of the given widths, then a label matrix as in LabelMLP.

    Shapes:
        x: the input of `features`, whose output is (B, D).   returns: (B, L).
    """

    def __init__(
        self, features: Features, num_labels: int, *, widths: Sequence[int] = (1024,), dropout: float = 0.0
    ) -> None:
        super().__init__()
        at_least(1, num_labels=num_labels, **{f"widths.{place}": size for place, size in enumerate(widths)})
        self.features = features
        self.layers = hidden_layers(features.size, widths, dropout)
        self.labels = nn.Linear([features.size, *widths][-1], num_labels, bias=False)
        nn.init.xavier_uniform_(self.labels.weight)

    def forward(self, x: Inputs) -> Tensor:
        return self.labels(self.layers(self.features(x)))


class LabelMLP(nn.Module):
    """One number per label: features times a label matrix without bias.   [SEAL §4, T(x) G^T]

    The output is logits in a task-net, and local potentials of the labels in an energy. The label matrix is
    Xavier-uniform, as in the released code.

    Shapes:
        x: (B, D).   returns: (B, L).
    """

    def __init__(
        self,
        num_features: int,
        num_labels: int,
        *,
        num_layers: int = 2,
        width: int = 400,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        at_least(1, num_labels=num_labels)
        self.features = MLP(num_features, num_layers=num_layers, width=width, dropout=dropout)
        self.labels = nn.Linear(width, num_labels, bias=False)
        nn.init.xavier_uniform_(self.labels.weight)

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        return self.labels(self.features(x))


def hidden_layers(num_features: int, widths: Sequence[int], dropout: float) -> nn.Sequential:
    """Layers of linear, softplus, dropout; no dropout after the last. See MLP."""
    layers: list[nn.Module] = []
    for depth, (into, out) in enumerate(pairwise([num_features, *widths]), 1):
        linear = nn.Linear(into, out)
        reset_linear(linear)
        layers += [linear, nn.Softplus()]
        if dropout and depth < len(widths):
            layers.append(Dropout(dropout))
    return nn.Sequential(*layers)


def reset_linear(linear: nn.Linear) -> None:
    """Reinitialise a linear layer: weight Kaiming-uniform with ReLU gain and fan-in, bias 0."""
    nn.init.kaiming_uniform_(linear.weight, nonlinearity="relu")
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


class CostAugmentedHead(nn.Module):
    """A head on the answer of a task-net and the truth: 2L -> L -> L.

    [SEAL code, dynamic margin]

    Shapes:
        prediction, y: (B, L).   returns: logits (B, L).
    """

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        at_least(1, num_labels=num_labels)
        self.inner, self.outer = nn.Linear(2 * num_labels, num_labels), nn.Linear(num_labels, num_labels)
        reset_linear(self.inner)
        reset_linear(self.outer)

    def forward(self, prediction: Tensor, y: Tensor) -> Tensor:
        return self.outer(nn.functional.softplus(self.inner(torch.cat([prediction, y], dim=-1))))


class StackedHead(nn.Module):
    """A head on the answer of a task-net and the truth: one affine map 2L -> L.   [InfNet+ §3.1]

    It has torch's initialisation. In tag sequences it maps each position separately, padding too.

    Shapes:
        prediction, y: (..., L).   returns: logits (..., L).
    """

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        at_least(1, num_labels=num_labels)
        self.output = nn.Linear(2 * num_labels, num_labels)

    def forward(self, prediction: Tensor, y: Tensor) -> Tensor:
        return self.output(torch.cat([prediction, y], dim=-1))
