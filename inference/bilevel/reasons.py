"""Why a solver stopped early, in words."""


def why_stopped(curvature: float, divisor: float, *, damping: float = 0.0) -> str:
    """What stopped it and what helps, from `Hypergradient.curvature` and the divisor.

    `damping` is what was added to the diagonal of H, as a multiple of the divisor.
    """
    if curvature > 0:
        return (
            f"H with its damping has a curvature of {curvature:.4g} or more, and the divisor was "
            f"{divisor:.4g}: take a divisor as large. Training raises its own; with a smaller refresh it "
            "measures more often."
        )
    if curvature < 0:
        return (
            f"H with its damping has a negative curvature, {curvature:.4g} or less, and the divisor was "
            f"{divisor:.4g}: a damping above {damping - curvature / divisor:.2g} times the divisor helps."
        )
    return (
        f"a product with H, the outer gradient or the divisor, {divisor:.4g}, is not a finite number: look "
        "at the logits and the energy."
    )
