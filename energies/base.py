"""What every energy is and offers."""

from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

OfAnswer = Callable[[Tensor], Tensor]
Slope = Callable[[Tensor], tuple[Tensor, Tensor]]
Curve = Callable[[Tensor], tuple[Tensor, OfAnswer]]


class Energy(nn.Module):
    """E(x, y): low where the answer fits the input.

    `y` may be relaxed, must receive gradients, and may carry leading sample dimensions: one input, many
    answers.

    Shapes:
        x: (B, ...).   y: (..., B, *answer).   returns: (..., B).
    """

    @abstractmethod
    def forward(self, x: Float[Tensor, "B *_"], y: Shaped[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The energy of each answer."""

    def given(self, x: Tensor) -> OfAnswer:
        """A function from y to E with the input fixed: `forward` in halves, for many answers one by one.

        What depends on x alone is computed here, once, where an energy overrides this: one dropout mask for
        all answers. Gradients reach y, and the parameters that ask for them; what is computed here is a
        constant if this is called without gradients.
        """
        return lambda y: self(x, y)

    def slope(self, x: Tensor) -> Slope:
        """A function from y to (E, dE/dy) with the input fixed, for procedures that search y.

        This one differentiates what `given` returns; an energy with a closed form overrides it. No gradient
        reaches the parameters.
        """
        with torch.no_grad():
            given = self.given(x)

        def value_and_gradient(y: Tensor) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                y = y.detach().requires_grad_()
                energy = given(y)
                (gradient,) = torch.autograd.grad(energy.sum(), y)
            return energy.detach(), gradient

        return value_and_gradient

    def curve(self, x: Tensor) -> Curve | None:
        """A function from y to dE/dy and to u -> (d2E/dy2) u, both in closed form, with the input fixed.

        Gradients of dE/dy reach the parameters, not y. None where there is no closed form.
        """
        return None


class SumEnergy(Energy):
    """A local energy, which sees the input, plus a joint one, which sees how the parts of an answer agree."""

    def __init__(self, local: Energy, joint: Energy) -> None:
        super().__init__()
        self.local, self.joint = local, joint

    def forward(self, x: Float[Tensor, "B *_"], y: Shaped[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self.given(x)(y)

    def given(self, x: Tensor) -> OfAnswer:
        """The terms' own, added."""
        local, joint = self.local.given(x), self.joint.given(x)
        return lambda y: local(y) + joint(y)

    def slope(self, x: Tensor) -> Slope:
        """The terms' own slopes, added."""
        local, joint = self.local.slope(x), self.joint.slope(x)

        def value_and_gradient(y: Tensor) -> tuple[Tensor, Tensor]:
            (e1, g1), (e2, g2) = local(y), joint(y)
            return e1 + e2, g1 + g2

        return value_and_gradient

    def curve(self, x: Tensor) -> Curve | None:
        """The terms' own curves, added, where both have one."""
        local, joint = self.local.curve(x), self.joint.curve(x)
        if local is None or joint is None:
            return None

        def gradient_and_product(y: Tensor) -> tuple[Tensor, OfAnswer]:
            (g1, h1), (g2, h2) = local(y), joint(y)
            return g1 + g2, lambda u: h1(u) + h2(u)

        return gradient_and_product
