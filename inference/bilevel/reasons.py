"""The reason why a solver stopped early, as a message."""


def why_stopped(curvature: float, divisor: float, *, damping: float = 0.0) -> str:
    """What stopped the solver and what helps, from `Hypergradient.curvature` and the divisor.

    `damping` is that on the diagonal of H, as a multiple of the divisor.
    """
    if curvature > 0:
        return (
            f"H with its damping has a curvature of {curvature:.4g} or more, and the divisor was "
            f"{divisor:.4g}: take a divisor at least as large. Training raises its own; a smaller refresh "
            "estimates it more often."
        )
    if curvature < 0:
        return (
            f"H with its damping has a negative curvature, {curvature:.4g} or less, and the divisor was "
            f"{divisor:.4g}: take a damping above {damping - curvature / divisor:.2g} times the divisor."
        )
    return (
        f"a product with H, the outer gradient or the divisor, {divisor:.4g}, is not a finite number: look "
        "at the logits and the energy."
    )
