"""What new users write, and the few lines that they get for it."""

import functools
import re
import tempfile
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import Callback, Trainer, UserError
from trainer.python import brief
from trainer_plugins import Checkpoint, EarlyStopping

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 8)).astype("float32")
Y = RNG.integers(10, size=64)
HOT = keras.utils.to_categorical(Y, 10)
SPARSE = keras.losses.SparseCategoricalCrossentropy
STOP = keras.callbacks.EarlyStopping


def net(units=10, activation="softmax"):
    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(units, activation=activation)]
    )


def two_inputs():
    a, b = keras.Input((8,), name="a"), keras.Input((8,), name="b")
    both = keras.layers.Concatenate()([a, b])
    return keras.Model([a, b], keras.layers.Dense(10, "softmax")(both))


def make(model=net, loss="sparse_categorical_crossentropy", **options):
    return Trainer(model, **{"loss": loss, "strategy": "default", **options})


def dataset(batch=16):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch)


class Frame:
    """As a pandas frame with a column of text."""

    dtypes = {"age": np.dtype(float), "city": np.dtype(object)}

    def to_numpy(self):
        return np.array([[1.0, "Rome"], [2.0, "Bern"]], object)


class Shuffled(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        return X[:16], Y[:16]

    def on_epoch_end(self):
        pass


class Custom(keras.Model):
    def __init__(self, units):
        super().__init__()
        self.dense = keras.layers.Dense(units)

    def call(self, x):
        return self.dense(x)


def compiled_eagerly():
    model = net()
    model.compile("adam", SPARSE(), run_eagerly=True)
    return model


def used_optimizer():
    optimizer = keras.optimizers.Adam()
    optimizer.build(net(3).trainable_variables)
    return optimizer


class NoCall(keras.Model):
    pass


class OddKey(Trainer):
    def train_step(self, batch):
        return {1: tf.constant(1.0)}


class Odd(Callback):
    def __init__(self, *, due=None, state=None):
        super().__init__()
        self.due, self.odd = due, state or {}

    def next_due(self, step):
        return self.due

    def state(self):
        return self.odd


class Again(Callback):
    def __init__(self, trainer):
        super().__init__()
        self.trainer = trainer

    def on_train_begin(self, logs=None):
        self.trainer.train(8)


def train_with(callback):
    make(data=(X, Y)).train(4, callbacks=[callback])


def save(state):
    with tempfile.TemporaryDirectory() as folder:
        make(data=(X, Y)).train(
            4, model_dir=folder, callbacks=[Odd(state=state), Checkpoint()]
        )


def train_within():
    made = make(data=(X, Y))
    made.train(4, callbacks=[Again(made)])


def one_batch(*parts):
    return tf.data.Dataset.from_tensors(parts)


MISTAKES = {
    # The model.
    "no call": (lambda: make(NoCall).fit(X, Y), "NoCall has no method call"),
    "a number": (lambda: make(3), "a keras.Model, or a function"),
    "a layer": (lambda: make(keras.layers.Dense(3)), "a keras.Model, or"),
    "returns no model": (lambda: make(lambda: 3).build(), "returned a int"),
    "cannot be copied": (
        lambda: make(Custom(3), strategy="mirrored", data=(X, Y)).build(),
        "Pass a function that makes the model",
    ),
    "precision too late": (
        lambda: make(net(), precision="mixed_bfloat16"),
        "comes too late",
    ),
    "run_eagerly": (
        lambda: make(compiled_eagerly(), strategy="mirrored").build(),
        "run_eagerly: the replicas",
    ),
    # Loss, optimizer and metrics.
    "a complex loss": (
        lambda: make(loss=lambda y, p: tf.cast(p[:, 0], "complex64")).fit(X, Y),
        "The loss 'loss' is complex",
    ),
    "a key of a step": (
        lambda: OddKey(net, strategy="default").fit(X, Y),
        "returned 1 for a value",
    ),
    # Callbacks.
    "due now": (
        lambda: train_with(Odd(due=0)),
        "returned 0. Return a",
    ),
    "due in words": (lambda: train_with(Odd(due="3")), "returned '3'. Return"),
    "no JSON": (
        lambda: save({"a": object()}),
        r"Odd.state\(\) returned {'a'",
    ),
    "no JSON keys": (lambda: save({1: 2}), "whose keys are strings"),
    "train in a callback": (train_within, "A callback calls train or fit"),
    # Data.
    "times in a generator": (
        lambda: make().fit(iter([(X, np.zeros(64, "datetime64[s]"))])),
        "A batch has the dtype datetime64",
    ),
    "too few targets": (
        lambda: make().evaluate(one_batch(X, Y[:6])),
        r"targets of shape \(6,\), and outputs of shape \(64, 10\)",
    ),
    "too few weights": (
        lambda: make().fit(one_batch(X, Y, X[:6, 0])),
        r"sample_weight has shape \(6,\), .* each of \(64,\)",
    ),
    "no loss": (lambda: make(loss=None).fit(X, Y), "There is no loss"),
    "a loss misspelled": (
        lambda: make(loss="sparse_categorical_crossentrpy"),
        "Did you mean 'sparse_categorical_crossentropy'",
    ),
    "an optimizer misspelled": (
        lambda: make(optimizer="adamm"),
        "Did you mean 'adam'",
    ),
    "a loss for an optimizer": (
        lambda: make(optimizer=SPARSE()),
        "must be a Keras optimizer",
    ),
    "another model's optimizer": (
        lambda: make(optimizer=used_optimizer(), data=(X, Y)).build(),
        "has been used for another model",
    ),
    "a metric misspelled": (
        lambda: make(metrics=["accurracy"]).fit(X, Y),
        "Did you mean 'accuracy'",
    ),
    # Data.
    "no data": (lambda: make().train(3), "There is no train data"),
    "fit without data": (lambda: make().fit(epochs=3), "as in fit"),
    "evaluate without data": (
        lambda: make(data=(X, Y)).evaluate(),
        "There is no eval data",
    ),
    "train_and_evaluate without it": (
        lambda: make(data=(X, Y)).train_and_evaluate(5),
        "There is no eval data",
    ),
    "lengths differ": (
        lambda: make().fit(X, Y[:60]),
        "x has 64, y has 60",
    ),
    "a tensor of a single value": (
        lambda: make().fit(tf.constant(3.0), Y),
        "x is a single value",
    ),
    "times": (
        lambda: make().fit(np.zeros((64, 8), "datetime64[s]"), Y),
        r"x has the dtype datetime64\[s\], which no tensor",
    ),
    "no targets": (lambda: make().fit(X), "the data has no targets"),
    "targets without inputs": (lambda: make().fit(y=Y), "got y, but no x"),
    "one-hot vectors": (
        lambda: make().fit(X, HOT),
        r"y has shape \(32, 10\), SparseCategoricalCrossentropy wants \(32,\)"
        r".*use CategoricalCrossentropy, or .*argmax",
    ),
    "class numbers": (
        lambda: make(loss="categorical_crossentropy").fit(X, Y),
        r"wants \(32, 10\).*SparseCategoricalCrossentropy.*to_categorical",
    ),
    "too few classes": (
        lambda: make(lambda: net(5)).fit(X, Y),
        "has the class 9, but the model has 5 outputs",
    ),
    "classes from one": (
        lambda: make().fit(X, Y + 1),
        "the class 10, .*for the classes 0 to 9",
    ),
    "one output": (
        lambda: make(lambda: net(1)).fit(X, Y),
        "one for each class",
    ),
    "targets of another width": (
        lambda: make(lambda: net(3, None), "mse").fit(X, HOT),
        r"y has shape \(32, 10\), MeanSquaredError wants \(32, 3\)",
    ),
    "inputs of another width": (
        lambda: make().fit(X[:, :5], Y),
        r"x has shape \(32, 5\), the model takes \(32, 8\)",
    ),
    "labels are text": (
        lambda: make().fit(X, [str(label) for label in Y]),
        "y holds text, .*numpy.unique",
    ),
    "a column is text": (lambda: make().fit(Frame(), Y[:2]), "x holds text"),
    "rows of several lengths": (
        lambda: make().fit([[1, 2], [3]], [0, 1]),
        "equal length.*pad_sequences",
    ),
    "None among the values": (
        lambda: make().fit(np.array([[None] * 8] * 4), Y[:4]),
        "holds Python objects",
    ),
    "nothing": (lambda: make().fit([], []), "has no examples"),
    "a single value": (lambda: make().fit(np.float32(3)), "a single value"),
    "an input that is None": (
        lambda: make().fit([X, None], Y),
        "x has None for an input",
    ),
    "a path": (lambda: make().fit("train.csv", Y), "x is a str"),
    "data is a number": (lambda: make(data=3).train(1), "x is a int"),
    "four arrays": (
        lambda: make(data=(X, Y, Y, Y)),
        r"Give \(x, y\) or \(x, y, sample_weight\)",
    ),
    "a split called val": (
        lambda: make(data={"train": (X, Y), "val": (X, Y)}),
        "call it 'eval'",
    ),
    "a split misspelled": (
        lambda: make(data={"train": (X, Y), "test": (X, Y)}).evaluate(
            split="tset"
        ),
        "no split 'tset'. Did you mean 'test'",
    ),
    "examples that are not batched": (
        lambda: make(data=dataset().unbatch()),
        "Batch it with",
    ),
    "a PyDataset that shuffles": (
        lambda: make().fit(Shuffled()),
        "Shuffled.on_epoch_end changes the data",
    ),
    # Arguments of fit.
    "an argument misspelled": (
        lambda: make().fit(X, Y, epoch=3),
        "no argument 'epoch'. Did you mean 'epochs'",
    ),
    "epochs is text": (
        lambda: make().fit(X, Y, epochs="3"),
        "fit.epochs = '3' must be a whole number",
    ),
    "no epochs": (lambda: make().fit(X, Y, epochs=0), "whole number >= 1"),
    "epochs that are over": (
        lambda: make().fit(X, Y, epochs=3, initial_epoch=3),
        "leaves nothing to train",
    ),
    "targets beside a dataset": (
        lambda: make().fit(dataset(), Y),
        "got y, but x is a _BatchDataset",
    ),
    "a part of a dataset": (
        lambda: make().fit(dataset(), validation_split=0.2),
        "validation_split needs arrays",
    ),
    "a split and data": (
        lambda: make().fit(X, Y, validation_split=0.2, validation_data=(X, Y)),
        "choose one",
    ),
    "too large a part": (
        lambda: make().fit(X, Y, validation_split=0.999),
        "leaves no examples on one side",
    ),
    "a part of a percent": (
        lambda: make().fit(X, Y, validation_split=20),
        "must be a number >= 0 and < 1",
    ),
    "validation_steps of nothing": (
        lambda: make().fit(X, Y, validation_steps=3),
        "there is nothing to evaluate",
    ),
    "validation_steps of no eval split": (
        lambda: make(data=(X, Y)).fit(validation_steps=3),
        "validation_steps = 3, but there is nothing to evaluate",
    ),
    "validation_freq of none": (
        lambda: make(data=(X, Y)).fit(validation_freq=2),
        "validation_freq = 2, but there is nothing to evaluate",
    ),
    "validation_batch_size of one's own": (
        lambda: make(data={"train": (X, Y), "eval": (X, Y)}).fit(
            validation_batch_size=3
        ),
        "got validation_batch_size, but no x",
    ),
    "validation_batch_size of a dataset": (
        lambda: make().fit(
            X, Y, validation_data=dataset(), validation_batch_size=3
        ),
        "validation_batch_size is for arrays, and the data is a _Batch",
    ),
    "order of one's own data": (
        lambda: make(data=(X, Y)).fit(shuffle=False),
        "got shuffle, but no x",
    ),
    "batch_size of a split": (
        lambda: make(data={"train": (X, Y), "eval": (X, Y)}).evaluate(
            batch_size=8
        ),
        "evaluate got batch_size, but no data",
    ),
    "batch_size of a dataset": (
        lambda: make().evaluate(dataset(), batch_size=8),
        "batch_size is for arrays, and the data is a _Batch",
    ),
    "batch_size of batches to predict": (
        lambda: make().predict(dataset(), batch_size=8),
        "batch_size is for arrays, and the data is a _Batch",
    ),
    "steps without a name": (
        lambda: make(data={"eval": (X, Y)}).evaluate(5),
        r"evaluate got x = 5\. A number of batches has a name",
    ),
    "a list of epochs": (
        lambda: make().fit(X, Y, validation_split=0.5, validation_freq=[1]),
        "only every n-th epoch",
    ),
    "both kinds of weights": (
        lambda: make().fit(X, Y, sample_weight=X[:, 0], class_weight={0: 2.0}),
        "class_weight is given, and the data has sample weights",
    ),
    # Arguments of train.
    "words": (
        lambda: make(data=(X, Y)).train("three epochs"),
        "such as '3 epochs'",
    ),
    "a time": (lambda: make(data=(X, Y)).train("3h"), "such as '3 epochs'"),
    "a negative number": (lambda: make(data=(X, Y)).train(-1), ">= 1"),
    "a strategy misspelled": (
        lambda: make(strategy="miror"),
        "Did you mean 'mirrored'",
    ),
    # Callbacks.
    "a class": (
        lambda: make().fit(X, Y, callbacks=[STOP]),
        "is a class: write EarlyStopping",
    ),
    "no callback": (
        lambda: make().fit(X, Y, callbacks=["early_stopping"]),
        "is not a callback",
    ),
    "a backup": (
        lambda: make().fit(
            X, Y, callbacks=keras.callbacks.BackupAndRestore("backup")
        ),
        r"BackupAndRestore resumes only .*call train\(.*Checkpoint",
    ),
    "averages of Keras": (
        lambda: make().fit(
            X, Y, callbacks=[keras.callbacks.SwapEMAWeights(True)]
        ),
        r"SwapEMAWeights .*Trainer.ema_momentum",
    ),
    "a monitor of ours": (
        lambda: make().fit(
            X, Y, validation_split=0.5, callbacks=EarlyStopping("val_f1")
        ),
        "EarlyStopping.monitor = 'val_f1' is not measured",
    ),
    # Afterwards.
    "predict another width": (
        lambda: make().predict(X[:, :3]),
        r"x has shape \(32, 3\), the model takes \(32, 8\)",
    ),
    "text": (
        lambda: make().fit(X.astype(str), Y),
        "x holds text, but the model takes real numbers",
    ),
    "complex numbers": (
        lambda: make().predict(X.astype(complex)),
        "x holds complex numbers",
    ),
    "half a class": (
        lambda: make().fit(X, Y + 0.5),
        "has the value .*class numbers, which are whole",
    ),
    "names of inputs": (
        lambda: make(two_inputs).fit({"a": X, "c": X}, Y),
        "x is a dict with 'a', 'c', but the model's inputs are 'a', 'b'",
    ),
    "too few inputs": (
        lambda: make(two_inputs).fit([X], Y),
        "x has 1 array, but the model's inputs are 'a', 'b'",
    ),
    # Keras would pass over the second one.
    "too many inputs": (
        lambda: make().fit([X, X], Y),
        "x has 2 arrays, but the model's inputs are",
    ),
    "a mask": (
        lambda: make().fit(np.ma.masked_array(X, X > 1), Y),
        r"x is a masked array.*x.filled\(0\)",
    ),
    "fields": (
        lambda: make().fit(np.zeros(64, [("age", "f4"), ("size", "f4")]), Y),
        "x has the dtype .*age.*, which no tensor can have",
    ),
    "weights of text": (
        lambda: make().fit(X, Y, sample_weight=np.full(64, "a")),
        "sample_weight holds text",
    ),
    "weights that are missing": (
        lambda: make().fit(X, Y, sample_weight=np.full(64, np.nan)),
        "sample_weight holds NaN",
    ),
    "weights of classes": (
        lambda: make().fit(X, Y, sample_weight=np.ones((64, 10))),
        r"sample_weight has shape \(32, 10\), .* each of \(32,\)",
    ),
    "dicts": (
        lambda: make().fit(
            tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).batch(8)
        ),
        "yields dicts, which are inputs, and no targets",
    ),
    "no model": (Trainer, "Trainer: missing a required argument: 'model'"),
    "an argument of fit": (
        lambda: make(epochs=3),
        "Trainer has no argument 'epochs'",
    ),
    "predict a path": (lambda: make().predict("x.csv"), "x is a str"),
    "save anywhere": (lambda: make().save("model"), "must end with .keras"),
    "save nowhere": (
        lambda: make().save("no_such_folder/m.keras"),
        "there is no directory 'no_such_folder'",
    ),
}
# Shown where a step is traced, so the test takes longer.
LONG = (
    "due in words",
    "no JSON keys",
    "both kinds of weights",
    "a monitor misspelled",
    "a monitor of ours",
)


@pytest.fixture(autouse=True)
def briefly(monkeypatch):
    # A test of the command line in this process turns it off.
    monkeypatch.setitem(brief._state, "is_on", True)


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(one, marks=[pytest.mark.long] * (one in LONG))
        for one in MISTAKES
    ],
)
def test_a_mistake_is_a_sentence(mistake):
    call, message = MISTAKES[mistake]
    with pytest.raises(UserError, match=message) as raised:
        call()
    said = str(raised.value)
    assert 1 <= len(said.splitlines()) <= 3
    # Python's own lines for the call in this file, and ours for one frame.
    shown = "".join(traceback.format_exception(raised.value)).splitlines()
    assert len(shown) < 20
    assert "gin" not in said


def test_the_original_is_the_context():
    with pytest.raises(UserError) as raised:
        make(data=(X, HOT)).train(3)
    frames = traceback.extract_tb(raised.value.__context__.__traceback__)
    assert frames[-1].name == "_check_target_shape"


def test_a_notebook_shows_the_line_and_the_message():
    with pytest.raises(UserError) as raised:
        exec(compile("make(3)", "/tmp/ipykernel_1/2.py", "exec"), globals())
    shown = raised.value._render_traceback_()
    assert len(shown) <= 2
    assert shown[-1].startswith("UserError: Trainer.model = 3 must be")


@pytest.mark.parametrize(
    ("monitor", "share", "said"),
    [
        ("val_loss", 0.0, "'val_loss', but nothing is evaluated"),
        ("val_acuracy", 0.5, "Did you mean 'val_accuracy'"),
    ],
)
def test_what_keras_goes_on_without(monitor, share, said, caplog):
    trainer = make(metrics=["accuracy"])
    fit = functools.partial(
        trainer.fit,
        X,
        Y,
        validation_split=share,
        callbacks=STOP(monitor, mode="max"),
        verbose=0,
    )
    with pytest.warns(UserWarning, match=f"`{monitor}` which is not avail"):
        assert fit().epoch == [0]
    assert len(re.findall(said, caplog.text)) == 1
    # As on the command line, where a warning would be read too late.
    trainer.plugin.facts = {"configuration": "its hash"}
    with pytest.raises(ValueError, match=said):
        fit()
