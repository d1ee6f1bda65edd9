"""Feed-forward networks for multi-label classification, and heads that take the truth as input.

Shapes: B examples, D features, H hidden units, L labels.
"""

import torch
from torch import Tensor, nn

from networks.features import Features
from networks.inputs import SparseRows
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
        layers: list[nn.Module] = []
        for depth in range(num_layers):
            linear = nn.Linear(width if depth else num_features, width)
            reset_linear(linear)
            layers += [linear, nn.Softplus()]
            if dropout and depth < num_layers - 1:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers)
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


class LabelMLP(nn.Module):
    """One number per label: features times a label matrix without bias.   [SEAL §4.1, T(x) G^T]

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
