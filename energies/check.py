"""Whether an energy gives one number for each answer, of that answer alone, with gradients to follow."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from energies.base import ConditionedEnergy, Energy
from energies.spaces import AnswerSpace, LabelSets
from networks.inputs import Inputs, tensors_of
from networks.layers import at_rest, batch_norms

SOME = 0.1  # in place of parameters that are all 0, where an energy may have no gradient


@torch.enable_grad()
def check_energy(
    energy: Energy,
    space: AnswerSpace,
    x: Inputs,
    y: Tensor,
    mask: Tensor | None = None,
    *,
    followed: bool = True,
    trained: nn.Module | None = None,
) -> None:
    """Try an energy on the true answers y (B, ...) of a batch: one for each input, and two.

    Sets of labels are bool in one of the trials, as sampled sets are. A number for the whole batch would be
    added to every energy, and training would go on.

    `followed`: searches or a task-net descend the energy, so it needs a gradient in the answers; rules that
    judge samples do not. `trained` has all parameters that are trained, the energy's own if left out.

    Raises:
        ValueError: there are no answers, or they are not of the space; the energy cannot be computed, is no
            tensor, is not finite, has another shape than the answers' leading dimensions, changes what it is
            given, has no gradient in the answers, has parameters to learn and no gradient in any, or one in
            tensors that are no parameters, or depends on other answers too.
    """
    if not y.is_floating_point():
        raise ValueError(f"true answers have type {y.dtype}: give 0 and 1 as floats, y.float().")
    if not len(y):
        raise ValueError(
            "an energy is tried on true answers, and there are none: give a batch of one example or more."
        )
    check_answers((space, *energy.modules()), y)
    if mask is not None and (mask.dtype != torch.bool or mask.shape != y.shape[: mask.dim()]):
        raise ValueError(
            f"the mask has type {mask.dtype} and shape {tuple(mask.shape)}: it has to be bool, True where a "
            f"position of the answers of shape {tuple(y.shape)} is real."
        )
    two = torch.stack([y, y])
    trials = (y, two, two.bool()) if isinstance(space, LabelSets) else (y, two)
    name, before = type(energy).__name__, [tensor.clone() for tensor in (*tensors_of(x), y)]
    with at_rest(batch_norms(energy)):
        given = energy.over(mask).given(x)
        if not isinstance(given, ConditionedEnergy):
            raise ValueError(
                f"the energy {name} has a `given` that returns a {type(given).__name__}: it has to return a "
                "ConditionedEnergy of that function."
            )
        for answers in trials:
            value = _tried(name, given, answers, wanted=tuple(answers.shape[: answers.dim() - y.dim() + 1]))
            _check_unchanged(name, before, [*tensors_of(x), y])
        learnt = _leaves(value)
        del given, value  # their graph, before another is made
        with _none_zero(energy):
            _check_alone(name, energy.over(mask).given(x), two, followed=followed)
    _check_learns(name, energy, learnt, trained or energy)


def check_answers(parts: Iterable[object], y: Tensor) -> None:
    """Have each part that expects something of the true answers y compare it.

    Raises:
        ValueError: a size or a name does not fit.
    """
    for part in parts:
        if callable(check := getattr(part, "check_answers", None)):
            check(y)


def energies_in(module: nn.Module) -> list[Energy]:
    """The energies within a module, the terms of a sum before the sum."""
    return [inner for inner in module.modules() if isinstance(inner, Energy)][::-1]


def _tried(name: str, given: ConditionedEnergy, y: Tensor, wanted: tuple[int, ...]) -> Tensor:
    """The energy of answers; ValueError if it cannot be computed, has another shape or is NaN."""
    shape = tuple(y.shape)
    try:
        value = given(y)
    except RuntimeError as error:
        kind = " and type bool" if y.dtype == torch.bool else ""
        raise ValueError(
            f"the energy {name} cannot be computed for answers of shape {shape}{kind}: {error}"
        ) from error
    if not isinstance(value, Tensor):
        raise ValueError(
            f"the energy {name} gives a {type(value).__name__}: its forward has to return a tensor, a number "
            "for each answer."
        )
    if (found := tuple(value.shape)) != wanted:
        raise ValueError(
            f"the energy {name} has shape {found} for answers of shape {shape}: it has to be {wanted}, a "
            "number for each answer. Sum over the last dimensions alone."
        )
    if not value.isfinite().all():
        what = "NaN" if value.isnan().any() else "infinite"
        raise ValueError(
            f"the energy {name} is {what} for true answers before anything has been learnt. Look for NaN in "
            "the inputs, and in it for 0 / 0, log of numbers below 0, and differences of infinite numbers."
        )
    return value


def _check_unchanged(name: str, before: list[Tensor], after: list[Tensor]) -> None:
    """Raise ValueError if tensors have changed: those of the inputs, then the answers."""
    changed = [not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, after, strict=True)]
    if any(changed):
        what = "inputs" if any(changed[:-1]) else "answers"
        raise ValueError(
            f"the energy {name} changes the {what} that it is given: leave them as they are, without "
            "functions that end in an underscore."
        )


@contextmanager
def _none_zero(energy: nn.Module) -> Iterator[None]:
    """No parameter is all 0 within. The energy may be NaN there: only its gradient in answers is read."""
    zero = [(parameter, parameter.data) for parameter in energy.parameters() if not parameter.any()]
    for parameter, kept in zero:
        parameter.data = torch.full_like(kept, SOME)  # a change in place would spoil graphs made before
    try:
        yield
    finally:
        for parameter, kept in zero:
            parameter.data = kept


def _check_learns(name: str, energy: Energy, learnt: set[int], trained: nn.Module) -> None:
    """Raise ValueError if gradients reach none of an energy's parameters, or tensors that are not trained."""
    own = {id(parameter) for parameter in energy.parameters() if parameter.requires_grad}
    if own and not learnt:
        raise ValueError(
            f"the energy {name} has parameters, and its value has no gradient in them: it cannot learn. "
            "Compute it without detach, no_grad and NumPy."
        )
    if learnt - own - {id(parameter) for parameter in trained.parameters()}:
        raise ValueError(
            f"the energy {name} learns with tensors that are not among its parameters: they would stay as "
            "they are, and no checkpoint would have them. Keep layers as attributes or in an nn.ModuleList."
        )


def _leaves(value: Tensor) -> set[int]:
    """The ids of the tensors that a gradient of this one would reach."""
    found, nodes = set(), {value.grad_fn}
    todo = [*nodes]
    while todo:
        if (node := todo.pop()) is None:
            continue
        if (leaf := getattr(node, "variable", None)) is not None:
            found.add(id(leaf))
        new = {follower for follower, _ in node.next_functions} - nodes
        nodes |= new
        todo += new
    return found


def _check_alone(name: str, given: ConditionedEnergy, y: Tensor, *, followed: bool) -> None:
    """Raise ValueError if the energy of the first answer has no gradient in it, or one in others."""
    y = y.clone().requires_grad_()
    try:
        with torch.backends.cudnn.flags(enabled=False):  # its LSTM has no backward pass in evaluation mode
            value = given(y)[0, 0]
            found = torch.autograd.grad(value, y, allow_unused=True) if value.requires_grad else (None,)
    except RuntimeError as error:
        raise ValueError(f"the energy {name} cannot be differentiated in the answers: {error}") from error
    if found[0] is None and (not followed or given.has_closed_form):
        return
    if found[0] is None:
        raise ValueError(
            f"the energy {name} has no gradient in the answers: searches and task-nets follow it. Compute it "
            "without thresholds, argmax, detach and NumPy."
        )
    if found[0].nan_to_num().flatten(0, 1)[1:].any():
        raise ValueError(
            f"the energy {name} of an answer depends on other answers in its batch: sum, average and "
            "normalise over the dimensions of an answer alone."
        )
