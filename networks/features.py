"""The base class of networks whose output is the input of other networks."""

from torch import nn


class Features(nn.Module):
    """A network with an output of `size` features in the last dimension."""

    size: int
