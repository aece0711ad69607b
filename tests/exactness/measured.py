"""What becomes of a case: by Keras on one device, and by the Trainer."""

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tests.exactness.cases import BATCH, STEPS, Case
from trainer import ArrayExamples, Callback, Trainer, UserError

# One of these is a case's result.
Numbers = dict[str, np.ndarray]
Refused = str
_NO_NUMBER = "Keras gives no number."


class _Losses(Callback):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        if split == "train":
            self.found.append(logs["loss"])


def by_keras(case: Case) -> Numbers | Refused:
    """What Keras makes of a case with its own means, batch by batch."""
    keras.backend.clear_session(free_memory=False)
    model = (case.reference or case.model)()
    try:
        if case.metric is not None:
            found = {"metric": _metric_of_keras(case, model)}
            return _NO_NUMBER if _has_nan(found) else found
        model.compile(loss=case.loss, optimizer=case.optimizer())
        # Built within a step, ScheduleFreeAdamW loses its copies of weights.
        model.optimizer.build(model.trainable_variables)
        losses = []
        for batch in _batches(case):
            model.reset_metrics()
            losses.append(model.train_on_batch(*batch))
        if getattr(model.optimizer, "use_ema", False):
            model.optimizer.finalize_variable_values(model.trainable_variables)
        found = {"losses": np.array(losses), **_weights(model)}
    except Exception as error:  # Whatever it cannot do.
        return f"{type(error).__name__}: {error}"
    return _NO_NUMBER if _has_nan(found) else found


def by_trainer(
    cases: Sequence[Case], strategy: Any
) -> dict[str, Numbers | Refused]:
    """What Trainers make of cases under a strategy, by their names.

    Metrics of the same data are measured together; where one of them is
    refused, each by itself.
    """
    found: dict[str, Numbers | Refused] = {}
    for _, group in itertools.groupby(cases, lambda case: case.group):
        together = list(group)
        results = _by_one_trainer(together, strategy)
        if isinstance(results, str) and len(together) > 1:
            for case in together:
                found[case.name] = _one(_by_one_trainer([case], strategy))
        elif isinstance(results, str):
            found[together[0].name] = results
        else:
            names = [case.name for case in together]
            found |= dict(zip(names, results, strict=True))
    return found


def _one(results: list[Numbers] | Refused) -> Numbers | Refused:
    return results if isinstance(results, str) else results[0]


def _by_one_trainer(
    cases: Sequence[Case], strategy: Any
) -> list[Numbers] | Refused:
    """One result for each case, or why the Trainer refuses them."""
    first, recorder, trainer = cases[0], _Losses(), None
    try:
        trainer = Trainer(
            model=first.model,
            loss=first.loss,
            optimizer=first.optimizer,
            metrics=[case.metric for case in cases if case.metric],
            data=lambda split: ArrayExamples(first.arrays, shuffle=False),
            batch_size=BATCH,
            strategy=strategy,
        )
        if first.metric is not None:
            logs = trainer.evaluate()
            return [{"metric": _as_array(logs, case)} for case in cases]
        trainer.train(
            STEPS, steps_per_loop=1, log_every=1, callbacks=[recorder]
        )
    except UserError as error:
        assert trainer is None or trainer.step == 0, "refused too late"
        return str(error)
    return [{"losses": np.array(recorder.found), **_weights(trainer.model)}]


def difference(found: Numbers, wanted: Numbers) -> float:
    """The largest difference, relative where numbers are above 1."""
    assert found.keys() == wanted.keys(), (found.keys(), wanted.keys())
    largest = 0.0
    for key, one in wanted.items():
        if one.shape != found[key].shape or _has_nan(found):
            return float("inf")
        apart = np.abs(found[key] - one) / np.maximum(np.abs(one), 1.0)
        largest = max(largest, float(apart.max()))
    return largest


def _has_nan(found: Numbers) -> bool:
    return any(np.any(np.isnan(one)) for one in found.values())


def _batches(case: Case) -> list[list[np.ndarray]]:
    size = len(case.arrays[0])
    return [
        [part[start : start + BATCH] for part in case.arrays]
        for start in range(0, size, BATCH)
    ]


def _metric_of_keras(case: Case, model: keras.Model) -> np.ndarray:
    assert case.metric is not None
    metric = case.metric()
    weighted = len(case.arrays) > 2
    for x, y, *weight in _batches(case):
        y_pred = model(x)
        mask = getattr(y_pred, "_keras_mask", None)
        # As Keras' compiled metrics do where both are there.
        sample_weight = weight[0] if weighted else None
        if mask is not None:
            mask = np.asarray(mask, "float32")
            sample_weight = (
                mask
                if sample_weight is None
                else (mask * sample_weight[:, None])
            )
        metric.update_state(y, y_pred, sample_weight=sample_weight)
    return np.ravel(keras.ops.convert_to_numpy(metric.result()))


def _as_array(logs: dict[str, float], case: Case) -> np.ndarray:
    assert case.metric is not None
    name = case.metric().name
    if name in logs:
        return np.array([logs[name]])
    found = []
    while f"{name}_{len(found)}" in logs:
        found.append(logs[f"{name}_{len(found)}"])
    return np.array(found)


def _weights(model: keras.Model) -> Numbers:
    return {
        f"weight {i}": keras.ops.convert_to_numpy(variable)
        for i, variable in enumerate(model.trainable_variables)
    }
