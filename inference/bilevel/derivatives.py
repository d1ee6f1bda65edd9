"""Vector-Jacobian products of retained graphs, and a check for operations without a second derivative."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

# torch's message for an operation without a second derivative, and the node it leaves for a custom function
ONLY_ONCE = re.compile(r"derivative for '?(?P<name>[\w:.]+)'? is not implemented")
FORGOTTEN = "torch::autograd::Error"


def vjp(
    outputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    by: Sequence[Tensor],
    *,
    create_graph: bool = False,
) -> list[Tensor]:
    """The gradient of <weights, outputs>, 0 where they do not depend on it; the graph is retained.

    This calls the engine behind `torch.autograd.grad` directly. The checks of that function take 50 us a
    call, as long as a product in a small net.

    Raises:
        ValueError: an operation has no second derivative.
    """
    if not outputs:
        return [torch.zeros_like(p) for p in by]
    engine = torch.autograd.Variable._execution_engine
    try:
        found = engine.run_backward(
            tuple(outputs),
            tuple(weights),
            True,
            create_graph,
            tuple(by),
            allow_unreachable=True,
            accumulate_grad=False,
        )
    except RuntimeError as error:
        once = ONLY_ONCE.search(str(error))
        if not once:
            raise
        raise ValueError(_no_second_derivative(once["name"])) from error
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, by, strict=True)]


def refuse_once_differentiable(gradients: Sequence[Tensor]) -> None:
    """Search the graph of a gradient for functions marked `once_differentiable`.

    Such a function leaves an error node that is not connected to its inputs. So torch raises no error, and
    the contribution of the function to a product would be missing silently.

    Raises:
        ValueError: there is such a function.
    """
    if any(node.name() == FORGOTTEN for node in _graph(gradients)):
        raise ValueError(_no_second_derivative("a custom autograd function"))


def refuse_other_ways(losses: Sequence[Tensor], weights: Iterable[Tensor]) -> None:
    """Search the graphs of losses of the logits, taken as constants, for the weights of the net.

    Raises:
        ValueError: a loss depends on the weights in another way, and products would leave that out.
    """
    places = {id(weight) for weight in weights}
    if any(id(getattr(node, "variable", None)) in places for node in _graph(losses)):
        raise ValueError(
            "a loss depends on the weights of the net not by its logits alone, as with a penalty on weights. "
            "Take inference.bilevel.Exact() or FiniteDifference() for products."
        )


def _graph(outputs: Sequence[Tensor]) -> Iterator[Any]:
    """All nodes of the graph of some tensors, each once."""
    nodes = [t.grad_fn for t in outputs if t.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        yield (node := nodes.pop())
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                nodes.append(before)


def _no_second_derivative(name: str) -> str:
    return (
        f"{name} has no second derivative, so there is no exact product with the Hessian of the inner loss. "
        "Take inference.bilevel.FiniteDifference() for products."
    )
