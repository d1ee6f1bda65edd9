"""Inference networks: feed-forward nets in place of a search over the energy.   [InfNet+ §3]

The network of role `test`, A, predicts. The network of role `augmented`, F, looks for answers of low energy
and high cost while the energy is trained. There are three ways to build the two, and one network for both
roles. F may also be no network: the exact answer of a chain, or the best of samples of A.

Shapes: B examples; logits have the shape of an answer, (B, ...); H features at each position.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from copy import deepcopy

import torch
from torch import Tensor, nn

from energies.base import ConditionedEnergy
from energies.spaces import AnswerSpace
from inference.exact import lowest
from losses.joint import ROLES, Role
from networks.inputs import Inputs
from networks.layers import Features
from networks.sizes import at_least

Relax = Callable[[Tensor], Tensor]


class InferenceNetworks(nn.Module, ABC):
    """A and F.

    `learned`: those that are networks; the answers of the others are `searched`. `supervised`: those trained
    with the local cross-entropy too.   [InfNet+ code]
    """

    learned: tuple[Role, ...] = ROLES
    supervised: tuple[Role, ...] = ROLES

    @abstractmethod
    def forward(self, x: Inputs, y: Tensor, relax: Relax, roles: Collection[Role]) -> dict[Role, Tensor]:
        """Logits (B, ...) of the requested roles that are learned; `relax` maps them to a relaxed answer."""

    @abstractmethod
    def predict(self, x: Inputs) -> Tensor:
        """The logits of A."""

    @abstractmethod
    def predictors(self) -> list[nn.Module]:
        """The modules that `predict` uses."""

    def check(self, roles: Collection[Role], *, tuned: bool = False) -> None:
        """Check that an objective over these roles trains these networks, and that A can be tuned if wanted.

        Raises:
            ValueError: it does not, or cannot; the message says what to take instead.
        """
        if tuned:
            raise ValueError(
                f"{type(self).__name__} trains A together with F; the phase `tune` is for networks.Single."
            )
        if "test" not in roles:
            raise ValueError(
                f"the objective trains F alone, and {type(self).__name__} would predict with an untrained A: "
                "take networks.Single, or an objective of both such as Compound."
            )

    def searched(
        self, energy: ConditionedEnergy, space: AnswerSpace, y: Tensor, logits: dict[Role, Tensor]
    ) -> dict[Role, Tensor]:
        """The answers (B, ...) of the roles that are not learned, given the logits of those that are.

        No gradient reaches the energy.
        """
        return {}

    def fix_augmented(self) -> None:
        """Freeze F and start to tune A from it; only for networks that `check` accepts with `tuned`."""
        raise NotImplementedError


class Single(InferenceNetworks):
    """One network for both roles: it is trained as F, then tuned as A.   [Tu and Gimpel 2018]"""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.before = deepcopy(net).requires_grad_(False)  # F, once it is fixed
        self.fixed = False

    def forward(self, x: Inputs, y: Tensor, relax: Relax, roles: Collection[Role]) -> dict[Role, Tensor]:
        if not self.fixed:
            return dict.fromkeys(roles, self.net(x))
        nets: dict[Role, nn.Module] = {"augmented": self.before, "test": self.net}
        return {role: nets[role](x) for role in roles}

    def check(self, roles: Collection[Role], *, tuned: bool = False) -> None:
        if len(roles) > 1:
            raise ValueError(
                "the objective trains A and F, and Single is one network: take networks.Separated, Shared or "
                "Stacked, or an objective of one role such as MarginRescaled."
            )

    def predict(self, x: Inputs) -> Tensor:
        return self.net(x)

    def predictors(self) -> list[nn.Module]:
        return [self.net]

    def fix_augmented(self) -> None:
        """See InferenceNetworks; a second call resets A to F."""
        if self.fixed:
            self.net.load_state_dict(self.before.state_dict())
        else:
            self.before.load_state_dict(self.net.state_dict())
            self.fixed = True

    def get_extra_state(self) -> Tensor:
        """Whether F is fixed, for checkpoints."""
        return torch.tensor(self.fixed)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore whether F is fixed."""
        self.fixed = bool(state)


class Separated(InferenceNetworks):
    """Two networks without shared parameters.   [InfNet+ Fig. 1a]"""

    def __init__(self, test: nn.Module, augmented: nn.Module) -> None:
        super().__init__()
        self.nets = nn.ModuleDict({"test": test, "augmented": augmented})

    def forward(self, x: Inputs, y: Tensor, relax: Relax, roles: Collection[Role]) -> dict[Role, Tensor]:
        return {role: self.nets[role](x) for role in roles}

    def predict(self, x: Inputs) -> Tensor:
        return self.nets["test"](x)

    def predictors(self) -> list[nn.Module]:
        return [self.nets["test"]]


class Shared(InferenceNetworks):
    """One feature network with two affine heads; both losses train it.   [InfNet+ Fig. 1b]

    `features` maps inputs to (B, ..., H), where H is its `size`; each head maps that to (B, ...,
    num_outputs).
    """

    def __init__(self, features: Features, num_outputs: int) -> None:
        super().__init__()
        at_least(1, num_outputs=num_outputs)
        self.features = features
        self.heads = nn.ModuleDict({role: nn.Linear(features.size, num_outputs) for role in ROLES})

    def forward(self, x: Inputs, y: Tensor, relax: Relax, roles: Collection[Role]) -> dict[Role, Tensor]:
        features = self.features(x)
        return {role: self.heads[role](features) for role in roles}

    def predict(self, x: Inputs) -> Tensor:
        return self.heads["test"](self.features(x))

    def predictors(self) -> list[nn.Module]:
        return [self.features, self.heads["test"]]


class Stacked(InferenceNetworks):
    """F takes the answer of A and the truth: F(x, y) = head(A(x), y).   [InfNet+ Fig. 1c]

    `head` maps two answers (B, ...) to logits. The loss of F sends no gradient to A; in the released code it
    does (`blocked=False`).
    """

    supervised = ("test",)

    def __init__(self, test: nn.Module, head: nn.Module, *, blocked: bool = True) -> None:
        super().__init__()
        self.test, self.head, self.blocked = test, head, blocked

    def forward(self, x: Inputs, y: Tensor, relax: Relax, roles: Collection[Role]) -> dict[Role, Tensor]:
        logits: dict[Role, Tensor] = {"test": self.test(x)}
        if "augmented" in roles:
            answer = relax(logits["test"])
            logits["augmented"] = self.head(answer.detach() if self.blocked else answer, y)
        return {role: logits[role] for role in roles}

    def predict(self, x: Inputs) -> Tensor:
        return self.test(x)

    def predictors(self) -> list[nn.Module]:
        return [self.test]


class Searched(InferenceNetworks):
    """A is a network, F an answer that is searched for anew in each step of the energy."""

    learned = supervised = ("test",)

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Inputs, y: Tensor, relax: Relax, roles: Collection[Role]) -> dict[Role, Tensor]:
        return {"test": self.net(x)} if "test" in roles else {}

    @abstractmethod
    def searched(
        self, energy: ConditionedEnergy, space: AnswerSpace, y: Tensor, logits: dict[Role, Tensor]
    ) -> dict[Role, Tensor]: ...

    def predict(self, x: Inputs) -> Tensor:
        return self.net(x)

    def predictors(self) -> list[nn.Module]:
        return [self.net]


class ExactAugmented(Searched):
    """F is the exact cost-augmented answer of a chain.

    F(x, y) = argmax_y' cost(y', y) - E(x, y'), by Viterbi with the cost of each tag added to its unary score.
    So it attains the maximum of the margin-rescaled hinge.   [InfNet+ eqs. 4, 6; Scaling eq. 7]

    Raises:
        ValueError: in the first step, if the energy is not a chain.
    """

    def searched(
        self, energy: ConditionedEnergy, space: AnswerSpace, y: Tensor, logits: dict[Role, Tensor]
    ) -> dict[Role, Tensor]:
        return {"augmented": lowest(energy, space.tag_costs(y))}


class SampledAugmented(Searched):
    """F is the best of samples of A, for an energy whose cost-augmented answer cannot be found exactly.

    F(x, y) = argmax of cost(y', y) - E(x, y') over `num_samples` answers y' ~ A(x).   [InfNet+ eq. 4]
    """

    def __init__(self, net: nn.Module, num_samples: int = 20) -> None:
        super().__init__(net)
        at_least(1, num_samples=num_samples)
        self.num_samples = num_samples

    @torch.no_grad()
    def searched(
        self, energy: ConditionedEnergy, space: AnswerSpace, y: Tensor, logits: dict[Role, Tensor]
    ) -> dict[Role, Tensor]:
        answers = space.sample(logits["test"], self.num_samples)
        best = (space.cost(answers, y) - energy(answers)).argmax(0)
        return {"augmented": answers[best, torch.arange(len(y), device=y.device)].to(y.dtype)}
