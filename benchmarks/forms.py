"""The rule that chooses the form of a step, on models it was not fitted to.

Each model is trained in every form in turn, in one process, and the speed of
the form that the rule chooses is compared with the fastest one's and with the
graph's.
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers

from benchmarks.models import CLASSES
from benchmarks.table import as_table
from trainer import Callback, Trainer
from trainer.loop.compiled_form import FIRST_CHOSEN
from trainer.step.forms import Form

_ROWS = 6_400
_TURN_SECONDS = 1.0


def _dense(width: int, activation: str | None = None) -> Any:
    return layers.Dense(width, activation=activation)


def _residual(x: Any, layer: Any) -> Any:
    return x + layer(layers.LayerNormalization()(x))


def _mixer(x: Any) -> Any:
    """Two blocks of an MLP-Mixer (Tolstikhin et al., 2021)."""
    for _ in range(2):
        over_rows = keras.Sequential(
            [
                layers.Permute((2, 1)),
                _dense(32, "gelu"),
                _dense(16),
                layers.Permute((2, 1)),
            ]
        )
        x = _residual(x, over_rows)
        x = _residual(x, keras.Sequential([_dense(128, "gelu"), _dense(32)]))
    return layers.GlobalAveragePooling1D()(x)


def _highway(x: Any) -> Any:
    x = _dense(64)(x)
    for _ in range(6):
        gate = _dense(64, "sigmoid")(x)
        x = gate * _dense(64, "tanh")(x) + (1 - gate) * x
    return x


def _experts(x: Any) -> Any:
    """Eight small experts, all of them computed, weighed by a gate."""
    gate = keras.ops.expand_dims(_dense(8, "softmax")(x), -1)
    each = layers.Reshape((8, 32))(_dense(256, "relu")(x))
    return keras.ops.sum(gate * each, axis=1)


def _attention_pooling(x: Any) -> Any:
    x = layers.Embedding(5_000, 48)(x)
    return keras.ops.sum(keras.ops.softmax(_dense(1)(x), axis=1) * x, axis=1)


def _in_order(make: Callable[[], Sequence[Any]]) -> Callable[[Any], Any]:
    """One layer after the other, made anew for each contender."""
    return lambda x: keras.Sequential(list(make()))(x)


def _models() -> dict[str, tuple[tuple[int, ...], int, Callable[[Any], Any]]]:
    """By name: the shape of an example, its vocabulary, and the layers.

    The vocabulary is 0 where an example consists of floats.
    """
    return {
        "logistic regression": (
            (200,),
            0,
            _in_order(lambda: [layers.Flatten()]),
        ),
        "autoencoder 256": (
            (256,),
            0,
            _in_order(
                lambda: [
                    *(_dense(64, "relu"), _dense(8)),
                    _dense(256, "sigmoid"),
                ]
            ),
        ),
        "MLP 512-512, layer norm, dropout": (
            (300,),
            0,
            _in_order(
                lambda: [
                    *(_dense(512), layers.LayerNormalization()),
                    *(layers.Activation("gelu"), layers.Dropout(0.3)),
                    *(_dense(512, "gelu"), layers.Dropout(0.3)),
                ]
            ),
        ),
        "MLP 2048-2048": (
            (256,),
            0,
            _in_order(lambda: [_dense(2048, "relu") for _ in range(2)]),
        ),
        "highway network": ((64,), 0, _highway),
        "mixture of experts": ((100,), 0, _experts),
        "MLP-Mixer": ((16, 32), 0, _mixer),
        "bidirectional RNN": (
            (40, 16),
            0,
            _in_order(lambda: [layers.Bidirectional(layers.SimpleRNN(32))]),
        ),
        "two GRUs": (
            (30, 24),
            0,
            _in_order(
                lambda: [layers.GRU(48, return_sequences=True), layers.GRU(48)]
            ),
        ),
        "attention pooling": ((40,), 5_000, _attention_pooling),
        "embedding and LSTM": (
            (30,),
            2_000,
            _in_order(lambda: [layers.Embedding(2_000, 32), layers.LSTM(32)]),
        ),
        "separable convolutions": (
            (32, 32, 3),
            0,
            _in_order(
                lambda: [
                    layers.SeparableConv2D(32, 3, activation="relu"),
                    layers.MaxPooling2D(),
                    layers.SeparableConv2D(32, 3, activation="relu"),
                    layers.GlobalAveragePooling2D(),
                ]
            ),
        ),
    }


def _model(
    shape: tuple[int, ...], vocabulary: int, make: Callable[[Any], Any]
) -> keras.Model:
    x = keras.Input(shape, dtype="int32" if vocabulary else "float32")
    return keras.Model(x, _dense(CLASSES)(make(x)))


class _FormOf(Callback):
    """Keeps the form that the newest steps had."""

    form = ""

    def on_train_end(self, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        self.form = str(self.run.spec.form)


class _Contender:
    """A Trainer of one model in one form.

    Args:
        form: what `jit_compile` is.
        model: makes the model.
        data: arrays of examples and labels.
    """

    def __init__(self, form: str, model: Any, data: Any) -> None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._trainer = Trainer(
            model=model,
            loss=loss,
            optimizer=keras.optimizers.Adam,
            metrics=["accuracy"],
            data=data,
            batch_size=64,
            jit_compile=form,
        )
        self._found = _FormOf()
        # The first call compiles, and `auto` makes its choice.
        self.turn(FIRST_CHOSEN + 100)

    @property
    def form(self) -> str:
        """The form of its newest steps."""
        return self._found.form

    def turn(self, steps: int) -> float:
        """Makes so many more steps; returns seconds."""
        before = time.perf_counter()
        self._trainer.train(
            self._trainer.step + steps,
            callbacks=[self._found],
            log_every=1_000,
            verbose=0,
        )
        return time.perf_counter() - before


def _data(shape: tuple[int, ...], vocabulary: int) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    x: Any = random.random((_ROWS, *shape), dtype=np.float32)
    if vocabulary:
        x = random.integers(0, vocabulary, (_ROWS, *shape), dtype=np.int32)
    return x, random.integers(0, CLASSES, _ROWS, dtype=np.int32)


def measure(*, rounds: int, tell: Callable[[str], None]) -> Iterator[str]:
    """Yields a table: the rule's form against the best one and the graph."""
    forms = [str(form) for form in Form]
    rows: list[Sequence[str]] = []
    for name, (shape, vocabulary, make) in _models().items():
        model = functools.partial(_model, shape, vocabulary, make)
        data = _data(shape, vocabulary)
        rule = _Contender("auto", model, data).form
        present = {one: _Contender(one, model, data) for one in forms}
        # The same for all, so that what a call costs is the same as well.
        steps = 500
        while min(one.turn(steps) for one in present.values()) < _TURN_SECONDS:
            steps *= 2
        seconds: dict[str, list[float]] = {one: [] for one in forms}
        for number in range(rounds):
            shift = number % len(forms)
            for one in forms[shift:] + forms[:shift]:
                seconds[one].append(present[one].turn(steps))
        best = min(forms, key=lambda one: statistics.median(seconds[one]))
        ratios = [
            statistics.median(
                its / mine
                for mine, its in zip(seconds[rule], seconds[one], strict=True)
            )
            for one in (best, str(Form.GRAPH))
        ]
        rows.append((name, rule, best, *(f"{ratio:.2f}" for ratio in ratios)))
        tell("  " + ", ".join(rows[-1]))
    header = ("model", "rule", "fastest", "rule ÷ fastest", "rule ÷ graph")
    yield from as_table(header, rows)
