"""Products with the Hessian of a stack of linear layers, written in the examples instead of the weights.

The gradient of any loss of the logits has the form d^T h in a layer's weights: d (N, O) is its slope at what
the layer gives, h (N, I) is what the layer reads. H z differentiates that along z, and so has the form
V = Q^T h + d^T R in each layer, with the d and h of the point. All that a solver makes of v and of products
has it too. So a vector is kept as its Q (N, O) and R (N, I), and a weight's worth of numbers never exists:
of the first layer, whose input is fixed, only h h^T (N, N) is needed, whatever its width. The weights of
the others are multiplied as they are; the Hessian of the loss in the logits comes from autograd.

Shapes: N rows of the input (examples, or positions of them), I inputs and O outputs of a layer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.bilevel.products import Bilevel, Curvature, Exact, Products, pulled, refuse_once_only
from inference.linear import Vector
from networks.mlp import MLP, LabelMLP

IN_TURN = (nn.Sequential, MLP, LabelMLP)  # modules that run their children one after another
LAYERS = (
    nn.Linear,
    nn.Dropout,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.Softplus,
    nn.Tanh,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.SiLU,
    nn.GELU,
    nn.Identity,
)


@dataclass(frozen=True)
class Dual(Products):
    """The same numbers as `Exact`, several times faster, for a stack of linear layers and activations.

    Where N is so large that the weights are the smaller matter, or vectors are averaged over processes, whose
    examples differ, this is `Exact`. Dropout draws what the net itself would.

    Raises, at the first use:
        ValueError: the net is no such stack.
    """

    def at(self, problem: Bilevel, *, shared: bool = False) -> Curvature:
        """Runs the net once, and both losses."""
        stack = [module for _, module in _stack(problem.net, "")]
        linears = [module for module in stack if isinstance(module, nn.Linear)]
        _check(problem.net, linears)
        problem.check()
        rows = problem.x.numel() // problem.x.shape[-1]
        in_examples = 3 * rows * sum(linear.in_features + linear.out_features for linear in linears)
        in_weights = 4 * sum(linear.in_features * linear.out_features for linear in linears)
        if shared or in_examples > in_weights:
            return Exact().at(problem)
        return _InExamples(problem, stack)


class _Layer:
    """A linear layer at its input, and the activation and dropout behind it; no gradients.

    `bend` and `turn` are the first and second derivative of what is behind it, where anything is.
    """

    bend: Tensor | None = None
    turn: Tensor | None = None

    def __init__(self, linear: nn.Linear, h: Tensor) -> None:
        self.weight, self.h = linear.weight.detach(), h
        self.forth = self.weight.T
        self.gram = h @ h.T
        self.out = F.linear(h, linear.weight, linear.bias)
        if linear.bias is not None:
            self.gram += 1  # what the bias reads

    def append(self, module: nn.Module) -> None:
        """Take in an elementwise module: (f o g)' = f' g', (f o g)'' = f'' g'^2 + f' g''."""
        out, bend, turn = _derivatives(module, self.out)
        if self.bend is None or self.turn is None:
            self.out, self.bend, self.turn = out, bend, turn
        else:
            turn = turn * self.bend.square() + bend * self.turn
            self.out, self.bend, self.turn = out, bend * self.bend, turn

    def receive(self, slope: Tensor, *, first: bool) -> None:
        """Take the inner loss's slope at `out`; the first layer's input does not change, so it has no R."""
        if not first:
            self.d = self.through(slope)
            self.slope_gram = self.d @ self.d.T
        if self.turn is not None:
            self.turn = self.turn * slope

    def through(self, slope: Tensor) -> Tensor:
        """A slope at `out`, or a change before it, on the other side of what is behind the linear layer."""
        return slope if self.bend is None else slope * self.bend


class _InExamples(Curvature):
    """Vectors are one tensor (N, C): the columns of the first layer's Q, then R and Q of each further one."""

    def __init__(self, problem: Bilevel, stack: list[nn.Module]) -> None:
        with torch.no_grad():
            self.layers = _run(stack, problem.x.reshape(-1, problem.x.shape[-1]))
        self.phi = list(problem.phi)
        last = self.layers[-1].out
        self.logits = last.view(*problem.x.shape[:-1], last.shape[1]).requires_grad_()
        with torch.enable_grad():
            inner = problem.inner(self.logits)
            (self.slopes,) = pulled([inner], [inner.new_ones(())], [self.logits], differentiable=True)
            outer = problem.outer(self.logits)
        refuse_once_only([self.slopes])
        slope, *self.explicit = pulled([outer], [outer.new_ones(())], [self.logits, *self.phi])
        with torch.no_grad():
            for layer, received in self._backwards(self.slopes.detach()):
                layer.receive(received, first=layer is self.layers[0])
            self.slope = [self._pulled_back(slope)]
            met = torch.empty_like(self.slope[0])
            self.met, self.met_parts = met.view(-1), self._parts(met)
        self.last: tuple[Tensor, int] | None = None

    def product(self, z: Vector) -> Vector:
        (vector,) = z
        self._meet(vector)
        out, met = torch.empty_like(vector), self.met_parts
        parts = self._parts(out)
        changes = self._along(parts)
        q = self._rows(_pulled(self.slopes, self._shaped(changes[-1]), [self.logits])[0])
        for depth in range(len(self.layers) - 1, -1, -1):
            layer, place = self.layers[depth], parts[2 * depth]
            if layer.bend is None or layer.turn is None:
                place.copy_(q)
            else:
                torch.mul(q, layer.bend, out=place).addcmul_(layer.turn, changes[depth])
            if depth:
                q = torch.addmm(met[2 * depth - 1], place, layer.weight)
        return [out]

    def cross(self, w: Vector) -> list[Tensor]:
        (vector,) = w
        self._meet(vector)
        changes = self._along(self._parts(torch.empty_like(vector)))
        return _pulled(self.slopes, self._shaped(changes[-1]), self.phi)

    def dot(self, a: Vector, b: Vector) -> Tensor:
        """Sum over layers of <Q, V h> + <R, V^T d>, V being what the other vector stands for."""
        self._meet(a[0])
        return torch.dot(self.met, b[0].view(-1))

    def _backwards(self, slope: Tensor) -> Iterator[tuple[_Layer, Tensor]]:
        """Slopes of a loss at what each layer gives, from the last to the first; the first is given."""
        slope = self._rows(slope)
        for layer in reversed(self.layers):
            yield layer, slope
            if layer is not self.layers[0]:
                slope = layer.through(slope) @ layer.weight

    def _pulled_back(self, slope: Tensor) -> Tensor:
        """The gradient in the weights of a loss with this slope at the logits: R is 0."""
        columns: list[Tensor] = []
        for layer, received in self._backwards(slope):
            q = layer.through(received)
            columns[:0] = [q] if layer is self.layers[0] else [torch.zeros_like(layer.h), q]
        self.sizes = [part.shape[1] for part in columns]
        return torch.cat(columns, 1)

    def _parts(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Views of the columns: Q of layer 0, R of 1, Q of 1, R of 2 ..."""
        return torch.split_with_sizes(vector, self.sizes, 1)  # Tensor.split takes three times as long

    def _meet(self, vector: Tensor) -> None:
        """Put h V^T in the place of Q and d V in that of R, V = Q^T h + d^T R, unless it is there."""
        if self.last is not None and self.last[0] is vector and self.last[1] == vector._version:
            return
        parts, places = self._parts(vector), self.met_parts
        torch.mm(self.layers[0].gram, parts[0], out=places[0])
        for depth, layer in enumerate(self.layers[1:], 1):
            r, q = parts[2 * depth - 1 : 2 * depth + 1]
            torch.mm(layer.slope_gram, r, out=places[2 * depth - 1]).addmm_(layer.d @ q.T, layer.h)
            torch.mm(layer.gram, q, out=places[2 * depth]).addmm_(layer.h @ r.T, layer.d)
        self.last = vector, vector._version

    def _along(self, places: Sequence[Tensor]) -> list[Tensor]:
        """How preactivations change along a vector that was met, then logits.

        The places of R get the inputs' changes.
        """
        met = self.met_parts
        changes = [met[0]]
        for depth, (before, layer) in enumerate(pairwise(self.layers), 1):
            r = places[2 * depth - 1]
            if before.bend is None:
                r.copy_(changes[-1])
            else:
                torch.mul(changes[-1], before.bend, out=r)
            changes.append(torch.addmm(met[2 * depth], r, layer.forth))
        return [*changes, self.layers[-1].through(changes[-1])]

    def _shaped(self, change: Tensor) -> Tensor:
        """A change (N, L) in the shape of the logits."""
        return change if self.logits.ndim == 2 else change.view(self.logits.shape)

    def _rows(self, of_logits: Tensor) -> Tensor:
        """What has the shape of the logits as (N, L)."""
        return of_logits if of_logits.ndim == 2 else of_logits.reshape(-1, of_logits.shape[-1])


def _pulled(slopes: Tensor, change: Tensor, by: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of <change of the logits, slope of the inner loss there>."""
    return pulled([slopes], [change], by) if slopes.requires_grad else pulled((), (), by)


def _stack(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The layers in the order they run in.

    Raises:
        ValueError: one is neither linear nor elementwise.
    """
    hooked = module._forward_hooks or module._forward_pre_hooks
    if type(module) in IN_TURN and not hooked:
        for child_name, child in module._modules.items():  # named_children leaves out what stands there twice
            assert child is not None
            yield from _stack(child, f"{name}.{child_name}" if name else child_name)
    elif type(module) in LAYERS and not hooked:
        yield name, module
    else:
        raise ValueError(
            "Dual is for stacks of linear layers and activations without hooks, and "
            f"'{name or 'the net'}' is of type {type(module).__name__}. Take "
            "inference.bilevel.Exact(), or FiniteDifference() for what can be derived only once."
        )


def _check(net: nn.Module, linears: list[nn.Linear]) -> None:
    """Refuse stacks whose weights are not one free matrix for each layer.

    Raises:
        ValueError: one is fixed or used twice, or there is none.
    """
    own = [p for linear in linears for p in (linear.weight, linear.bias) if p is not None]
    if own and all(p.requires_grad for p in own) and len(own) == len({id(p) for p in own}):
        return
    fixed = [name for name, p in net.named_parameters() if not p.requires_grad]
    trouble = f"'{fixed[0]}' is fixed" if fixed else "a weight is used twice" if own else "there is none"
    raise ValueError(
        f"Dual wants linear layers that all learn, each with its own weight, and {trouble}. Take "
        "inference.bilevel.Exact()."
    )


def _run(stack: list[nn.Module], x: Tensor) -> list[_Layer]:
    """The layers at what they read."""
    layers: list[_Layer] = []
    for module in stack:
        if isinstance(module, nn.Linear):
            layers.append(_Layer(module, layers[-1].out if layers else x))
        elif layers:
            layers[-1].append(module)
        else:
            x = module(x)
    return layers


def _derivatives(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value, first and second derivative of an elementwise module."""
    if isinstance(module, nn.Dropout):
        mask = module(torch.ones_like(x))
        return x * mask, mask, torch.zeros_like(x)
    if isinstance(module, nn.Softplus):
        scaled = x * module.beta
        bend = torch.sigmoid(scaled).masked_fill_(scaled > module.threshold, 1.0)
        return module(x), bend, torch.addcmul(bend, bend, bend, value=-1).mul_(module.beta)
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        out = module(x.clone())  # it may work in place
        (bend,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        turn = torch.zeros_like(x)
        if bend.requires_grad:
            (turn,) = torch.autograd.grad(bend.sum(), x, materialize_grads=True)
    return out.detach(), bend.detach(), turn
