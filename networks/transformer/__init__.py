"""Pretrained text encoders: `Encoder`, and `Kept`, the states of its frozen layers computed once."""

from networks.transformer.encoder import Encoder as Encoder
from networks.transformer.kept import Kept as Kept
