"""Hessian products for a stack of linear layers, in coordinates of the examples instead of the weights.

The gradient of a loss of the logits in a layer's weights is d^T h: d (N, O) is its gradient at the layer's
output, h (N, I) the layer's input. H z differentiates that along z, so in each layer it has the form
V = Q^T h + d^T R, with the d and h of the current point. Linear combinations of v and of products have this
form too. So a vector is stored as Q (N, O) and R (N, I), and no vector of the size of the weights is formed.
For the first layer, whose input is constant, h h^T (N, N) is enough. Other layers multiply by their weights.
The Hessian of the loss in the logits comes from autograd.

Shapes: N rows of the input (examples, or positions of them), I inputs and O outputs of a layer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.bilevel.derivatives import refuse_once_differentiable, refuse_other_ways, vjp
from inference.bilevel.hypergradient import Bilevel, Exact, HessianProducts, Products
from inference.linear import Vector
from networks.layers import Dropout
from networks.mlp import MLP, LabelMLP

IN_TURN = (nn.Sequential, MLP, LabelMLP)  # modules that run their children one after another
LAYERS = (
    nn.Linear,
    Dropout,
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

    `Exact` is used instead if N is so large that vectors of the size of the weights are cheaper, if the input
    is not dense, and if vectors are averaged over processes, whose examples differ. Dropout masks are drawn
    as the net draws them.

    Raises, at the first use:
        ValueError: the net is not such a stack, or a loss depends on its weights not by the logits alone.
    """

    def at(self, problem: Bilevel, *, shared: bool = False) -> HessianProducts:
        """Runs the net once, and both losses."""
        stack = [module for _, module in _stack(problem.net, "")]
        linears = [module for module in stack if isinstance(module, nn.Linear)]
        _check(problem.net, linears)
        problem.check()
        if shared or not isinstance(problem.x, Tensor):
            return Exact().at(problem)
        rows = problem.x.numel() // problem.x.shape[-1]
        in_examples = 3 * rows * sum(linear.in_features + linear.out_features for linear in linears)
        in_weights = 4 * sum(linear.in_features * linear.out_features for linear in linears)
        return Exact().at(problem) if in_examples > in_weights else _InExamples(problem, stack)


class _Layer:
    """A linear layer at its input h, and two derivatives of the elementwise modules after it."""

    first: Tensor | None = None
    second: Tensor | None = None

    def __init__(self, linear: nn.Linear, h: Tensor) -> None:
        self.weight, self.h = linear.weight.detach(), h
        self.transposed = self.weight.T
        self.gram = h @ h.T
        self.out = F.linear(h, linear.weight, linear.bias)
        if linear.bias is not None:
            self.gram += 1  # the bias has the input 1

    def append(self, module: nn.Module) -> None:
        """Add an elementwise module: (f o g)' = f' g', (f o g)'' = f'' g'^2 + f' g''."""
        out, first, second = _derivatives(module, self.out)
        if self.first is None or self.second is None:
            self.out, self.first, self.second = out, first, second
        else:
            second = second * self.first.square() + first * self.second
            self.out, self.first, self.second = out, first * self.first, second

    def receive(self, gradient: Tensor, *, lowest: bool) -> None:
        """Store the gradient of the inner loss at `out`. The lowest layer has no R: its input is constant."""
        if not lowest:
            self.d = self.times_first(gradient)
            self.d_gram = self.d @ self.d.T
        if self.second is not None:
            self.second = self.second * gradient

    def times_first(self, t: Tensor) -> Tensor:
        """Map a gradient at `out` back to the linear output, or a tangent of that forward to `out`."""
        return t if self.first is None else t * self.first


class _InExamples(HessianProducts):
    """Vectors are one tensor (N, C): the columns of the first layer's Q, then R and Q of each further one."""

    def __init__(self, problem: Bilevel, stack: list[nn.Module]) -> None:
        with torch.no_grad():
            self.layers = _run(stack, problem.x.reshape(-1, problem.x.shape[-1]))
        self.phi = list(problem.phi)
        last = self.layers[-1].out
        self.logits = last.view(*problem.x.shape[:-1], last.shape[1]).requires_grad_()
        with torch.enable_grad():
            inner = problem.inner(self.logits)
            (self.gradient,) = vjp([inner], [inner.new_ones(())], [self.logits], create_graph=True)
            outer = problem.outer(self.logits)
        refuse_once_differentiable([self.gradient])
        refuse_other_ways([inner, outer], problem.net.parameters())
        self.loss = outer.detach()
        of_outer, *self.explicit = vjp([outer], [outer.new_ones(())], [self.logits, *self.phi])
        with torch.no_grad():
            for layer, received in self._backpropagated(self.gradient.detach()):
                layer.receive(received, lowest=layer is self.layers[0])
            self.v = [self._weight_gradient(of_outer)]
            contracted = torch.empty_like(self.v[0])
            self.contracted, self.contracted_parts = contracted.view(-1), self._parts(contracted)
        self.last: tuple[Tensor, int] | None = None

    def product(self, z: Vector) -> Vector:
        (vector,) = z
        self._contract(vector)
        out, contracted = torch.empty_like(vector), self.contracted_parts
        parts = self._parts(out)
        tangents = self._tangents(parts)
        q = self._rows(self._vjp(tangents[-1], [self.logits])[0])
        for depth in range(len(self.layers) - 1, -1, -1):
            layer, place = self.layers[depth], parts[2 * depth]
            if layer.first is None or layer.second is None:
                place.copy_(q)
            else:
                torch.mul(q, layer.first, out=place).addcmul_(layer.second, tangents[depth])
            if depth:
                q = torch.addmm(contracted[2 * depth - 1], place, layer.weight)
        return [out]

    def cross(self, w: Vector) -> list[Tensor]:
        (vector,) = w
        self._contract(vector)
        tangents = self._tangents(self._parts(torch.empty_like(vector)))
        return self._vjp(tangents[-1], self.phi)

    def dot(self, a: Vector, b: Vector) -> Tensor:
        """Sum over layers of <Q, V h> + <R, V^T d>, with V the matrix of the other vector."""
        self._contract(a[0])
        return torch.dot(self.contracted, b[0].view(-1))

    def _backpropagated(self, gradient: Tensor) -> Iterator[tuple[_Layer, Tensor]]:
        """The gradient of a loss at the output of each layer, from the last layer to the first."""
        gradient = self._rows(gradient)
        for layer in reversed(self.layers):
            yield layer, gradient
            if layer is not self.layers[0]:
                gradient = layer.times_first(gradient) @ layer.weight

    def _weight_gradient(self, gradient: Tensor) -> Tensor:
        """The gradient in the weights of a loss with this gradient in the logits; its R is 0."""
        columns: list[Tensor] = []
        for layer, received in self._backpropagated(gradient):
            q = layer.times_first(received)
            columns[:0] = [q] if layer is self.layers[0] else [torch.zeros_like(layer.h), q]
        self.sizes = [part.shape[1] for part in columns]
        return torch.cat(columns, 1)

    def _parts(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Views of the columns: Q of layer 0, R of 1, Q of 1, R of 2 ..."""
        return torch.split_with_sizes(vector, self.sizes, 1)  # Tensor.split takes three times as long

    def _contract(self, vector: Tensor) -> None:
        """Store h V^T in place of Q and d V in place of R, with V = Q^T h + d^T R, unless already done."""
        if self.last is not None and self.last[0] is vector and self.last[1] == vector._version:
            return
        parts, places = self._parts(vector), self.contracted_parts
        torch.mm(self.layers[0].gram, parts[0], out=places[0])
        for depth, layer in enumerate(self.layers[1:], 1):
            r, q = parts[2 * depth - 1 : 2 * depth + 1]
            torch.mm(layer.d_gram, r, out=places[2 * depth - 1]).addmm_(layer.d @ q.T, layer.h)
            torch.mm(layer.gram, q, out=places[2 * depth]).addmm_(layer.h @ r.T, layer.d)
        self.last = vector, vector._version

    def _tangents(self, places: Sequence[Tensor]) -> list[Tensor]:
        """Tangents of preactivations along the vector last contracted, then of logits.

        The slots of R receive the tangents of inputs.
        """
        contracted = self.contracted_parts
        tangents = [contracted[0]]
        for depth, (before, layer) in enumerate(pairwise(self.layers), 1):
            r = places[2 * depth - 1]
            if before.first is None:
                r.copy_(tangents[-1])
            else:
                torch.mul(tangents[-1], before.first, out=r)
            tangents.append(torch.addmm(contracted[2 * depth], r, layer.transposed))
        return [*tangents, self.layers[-1].times_first(tangents[-1])]

    def _vjp(self, tangent: Tensor, by: Sequence[Tensor]) -> list[Tensor]:
        """The gradient of <tangent (N, L) of the logits, gradient of the inner loss there>."""
        if not self.gradient.requires_grad:
            return vjp((), (), by)
        return vjp([self.gradient], [tangent.view(self.logits.shape)], by)

    def _rows(self, of_logits: Tensor) -> Tensor:
        """Reshape from the shape of the logits to (N, L)."""
        return of_logits if of_logits.ndim == 2 else of_logits.reshape(-1, of_logits.shape[-1])


def _stack(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The layers in order of execution.

    Raises:
        ValueError: a layer is neither linear nor elementwise, or has hooks.
    """
    hooked = module._forward_hooks or module._forward_pre_hooks
    if type(module) in IN_TURN and not hooked:
        for child_name, child in module._modules.items():  # named_children skips repeated modules
            assert child is not None
            yield from _stack(child, f"{name}.{child_name}" if name else child_name)
    elif type(module) in LAYERS and not hooked:
        yield name, module
    else:
        raise ValueError(
            "Dual needs a stack of linear layers and activations without hooks, and "
            f"'{name or 'the net'}' is of type {type(module).__name__}. Take "
            "inference.bilevel.Exact(), or FiniteDifference() if it has no second derivative."
        )


def _check(net: nn.Module, linears: list[nn.Linear]) -> None:
    """Check that each layer has its own trainable weights.

    Raises:
        ValueError: a weight is fixed or shared, or there is no linear layer.
    """
    own = [p for linear in linears for p in (linear.weight, linear.bias) if p is not None]
    if own and all(p.requires_grad for p in own) and len(own) == len({id(p) for p in own}):
        return
    fixed = [name for name, p in net.named_parameters() if not p.requires_grad]
    trouble = f"'{fixed[0]}' is fixed" if fixed else "a weight is used twice" if own else "there is none"
    raise ValueError(
        f"Dual needs trainable linear layers, each with its own weight, and {trouble}. Take "
        "inference.bilevel.Exact()."
    )


def _run(stack: list[nn.Module], x: Tensor) -> list[_Layer]:
    """The layers at their inputs."""
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
        first = torch.sigmoid(scaled).masked_fill_(scaled > module.threshold, 1.0)
        return module(x), first, torch.addcmul(first, first, first, value=-1).mul_(module.beta)
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        out = module(x.clone())  # the module may work in place
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        second = torch.zeros_like(x)
        if first.requires_grad:
            (second,) = torch.autograd.grad(first.sum(), x, materialize_grads=True)
    return out.detach(), first.detach(), second
