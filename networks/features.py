"""What networks that feed other networks have in common."""

from torch import nn


class Features(nn.Module):
    """A network whose output has `size` numbers in its last dimension, known before it has run."""

    size: int
