"""Fits constants of a cost model to times: least squares of logarithms, robust to outliers, regularised towards the initial values."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Predict = Callable[[Vector], Vector]

ROUNDS = 40
HELD = 0.1  # weight of keeping a constant's initial value, relative to that of one time
FARTHEST = math.log(3.0)  # that a constant may move
OUTLIER = 0.15  # of a logarithm: larger residuals count linearly, not quadratically
WORTH = 0.9  # of the error on held-out times: else nothing is changed


def fit(predict: Predict, start: Vector, times: Vector) -> Vector:
    """The constants near `start` with which `predict` comes nearest to `times` (Levenberg-Marquardt on logarithms)."""
    origin, at, damping = np.log(start), np.log(start), 1e-2
    error = _cost(predict, at, origin, times)
    for _ in range(ROUNDS):
        jacobian, rest = _linear(predict, at, origin, times)
        normal, slope = jacobian.T @ jacobian, jacobian.T @ rest
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slope)
        there = origin + np.asarray(np.clip(at + step - origin, -FARTHEST, FARTHEST), np.float64)
        new = _cost(predict, there, origin, times)
        if new < error:
            done = error - new < 1e-9 * error
            at, error, damping = there, new, damping / 3
            if done:
                break
        elif (damping := damping * 4) > 1e6:
            break
    return np.exp(at)


def fit_checked(predict: Predict, start: Vector, times: Vector) -> Vector | None:
    """As `fit`; None where constants fitted to every other time do not clearly improve the others."""
    halves = np.arange(len(times)) % 2 == 0
    before = after = 0.0
    for part in (halves, ~halves):
        found = fit(_only(predict, part), start, times[part])
        before += spread(predict(start)[~part], times[~part])
        after += spread(predict(found)[~part], times[~part])
    return fit(predict, start, times) if after < WORTH * before else None


def spread(predicted: Vector, times: Vector) -> float:
    """The error of predictions, with little weight on outliers: about the mean distance of logarithms."""
    off = np.abs(np.log(predicted / times))
    return float(np.mean(np.minimum(off, 2 * OUTLIER)))


def _only(predict: Predict, part: NDArray[np.bool_]) -> Predict:
    return lambda x: predict(x)[part]


def _rest(predict: Predict, at: Vector, times: Vector) -> Vector:
    return np.log(predict(np.exp(at)) / times)


def _weights(rest: Vector) -> Vector:
    """Huber's."""
    return np.sqrt(np.minimum(1.0, OUTLIER / np.maximum(np.abs(rest), 1e-12)))


def _cost(predict: Predict, at: Vector, origin: Vector, times: Vector) -> float:
    off = np.abs(_rest(predict, at, times))
    huber = np.where(off <= OUTLIER, off**2, OUTLIER * (2 * off - OUTLIER))
    return float(np.sum(huber) + HELD * np.sum((at - origin) ** 2))


def _linear(predict: Predict, at: Vector, origin: Vector, times: Vector) -> tuple[Vector, Vector]:
    """The Jacobian, by differences, and the residuals, both weighted; the last rows penalise changes of the constants."""
    rest = _rest(predict, at, times)
    weights = _weights(rest)
    columns: Sequence[Vector] = [
        (_rest(predict, at + delta, times) - _rest(predict, at - delta, times)) / 2e-3
        for delta in np.eye(len(at)) * 1e-3
    ]
    jacobian = np.stack(columns, axis=1) * weights[:, None]
    held = np.sqrt(HELD)
    return (
        np.concatenate([jacobian, held * np.eye(len(at))]),
        np.concatenate([rest * weights, held * (at - origin)]),
    )
