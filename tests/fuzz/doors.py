"""Bad values through the doors that a process can try on itself.

`DOORS` are tables of `Call`s: command lines, environments, arguments and data
of Python. Each ends well, or in a sentence.
"""

import contextlib
import dataclasses
import datetime
import json
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import gin
import keras
import numpy as np
import tensorflow as tf

from trainer import Diverged, StartAgain, Trainer, UserError
from trainer.cli import flags
from trainer.cli.config import reader
from trainer.launch import arguments
from trainer.run_options import RunOptions, declared_in
from trainer.strategy.cluster.resolve import resolve_cluster
from trainer.strategy.recipe import Recipe


@dataclasses.dataclass
class Call:
    """One call; `what` is unique in its door."""

    what: str
    call: Callable[[], Any]


def sentence_of(call: Call) -> str:
    """The sentence of a refusal, `""` if there is none; all else is raised."""
    try:
        call.call()
    except (UserError, StartAgain, Diverged) as error:
        said = str(error)
        assert said.strip(), "refused without a word"
        # It may repeat what was given.
        assert len(said) <= 1500 + 2 * len(call.what), said
        assert said.count("\n") <= 4, said
        return said
    return ""


TEXTS = ["", " ", "x", "-1", "0", "1.5", "NaN", "1e999", "9" * 30, "None"]
TEXTS += ["True", "[]", "{", "a,b", ",", "a:1", "/", "..", "~", "é", "٣", "%s"]
TEXTS += ["{0}", "a\nb", "--", "=", "@x", "\x1b[31mx", "y" * 300, "a\0b"]
TEXTS += ["\udcff", "'", '"', "-", "1_0", "0x10", "+1", "١:٢", "\u202ex"]


FLAGS = list(flags.FLAGS)


def flag(name, text):
    given = ["--gin_file=x.gin", f"--{name}={text}"]
    return Call(f"--{name}={text}", lambda: flags.parse(given))


def of_flags():
    for name in FLAGS:
        yield from (flag(name, text) for text in TEXTS)
        yield Call(f"--{name}", lambda n=name: flags.parse([f"--{n}"]))
        given = ["--gin_file=x.gin", f"-{name}", "--", f"--no{name}"]
        yield Call(" ".join(given), lambda g=given: flags.parse(g))


def of_launcher():
    own = ["num_workers", "num_ps", "evaluator", "isolate", "log_dir"]
    own += ["max_restarts", "min_workers", "num_worker", "gin_file"]
    behind = ["--", "--gin_file=x.gin", "--model_dir=run"]
    for name in own:
        for text in TEXTS:
            given = [f"--{name}={text}", *behind]
            yield Call(f"--{name}={text}", lambda g=given: arguments.parse(g))
    for text in TEXTS:
        for given in ([text], [text, *behind], ["--", text], [*behind, text]):
            yield Call(f"{given}", lambda g=given: arguments.parse(g))


def of_gin():
    known = ["Trainer.batch_size", "run.train_steps", "Adam.beta_1", "x", ""]
    for name in known:
        for text in TEXTS:
            given = [f"--gin.{name}={text}"]
            yield Call(f"{given}", lambda g=given: _read(g))
    for text in TEXTS:
        given = [f"--gin_param={text}"]
        yield Call(f"{given}", lambda g=given: _read(g))
        yield Call(f"file {text!r}", lambda t=text: _read([], t))


def _read(given, text=""):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "x.gin")
        path.write_bytes(text.encode(errors="surrogateescape"))
        request = flags.parse([f"--gin_file={path}", *given])
        try:
            reader.load(request.gin_file, request.bindings)
        finally:
            gin.clear_config()


TWO = {"worker": ["a:1", "b:2"]}
FIRST = {"type": "worker", "index": 0}
# Whole descriptions, each variable of which is spoilt in turn.
CLUSTERS = {
    "TF_CONFIG": {"TF_CONFIG": json.dumps({"cluster": TWO, "task": FIRST})},
    "Slurm": {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURMD_NODENAME": "n1",
        "SLURM_DISTRIBUTION": "block",
    },
    "Kubernetes": {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "HOSTNAME": "net-1",
        "TRAINER_NUM_WORKERS": "3",
        "TRAINER_NUM_PS": "1",
        "TRAINER_SERVICE": "peers",
        "TRAINER_PORT": "2222",
        "JOB_COMPLETION_INDEX": "1",
    },
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
    "SageMaker": {"SM_HOSTS": '["a","b"]', "SM_CURRENT_HOST": "a"},
    "Volcano": {
        "VC_TASK_INDEX": "0",
        "VC_WORKER_NUM": "2",
        "VC_WORKER_HOSTS": "a,b",
    },
}
LISTS = ["n[", "n[1", "n[1-", "n[3-1]", "n[1-9999999999]", "[1-2]", "n[1-2],,"]
LISTS += ["1(x", "2(x9999999999)", "2(x-1)", "0(x2)", "[5]", '["a"', "[null]"]
LISTS += ["n[1-99999][1-99999][1-99999]", "a," * 5000, "[" * 100_000]
BRACES = ["{}", "null", "5", '"x"', '{"a":' * 20_000, '{"cluster": {}}']


def of_environment():
    for scheduler, whole in CLUSTERS.items():
        for name in whole:
            for text in [*TEXTS, *LISTS, *BRACES]:
                # No process has such a variable.
                if "\0" not in text:
                    yield of_scheduler(
                        scheduler, {**whole, name: text}, name, text
                    )
            without = {key: whole[key] for key in whole if key != name}
            yield of_scheduler(scheduler, without, name, None)
    # As hosts and task of a description in JSON.
    for text in [None, 5, 1.5, True, "", "a", ":1", "a:", "a:0", "a:99999"]:
        for cluster in (
            text,
            {"worker": text},
            {"worker": [text]},
            {"x": [text]},
        ):
            config = {"cluster": cluster, "task": FIRST}
            yield tf_config(config)
        for task in (text, [text], {"type": text, "index": 0}, {"index": text}):
            yield tf_config({"cluster": TWO, "task": task})
            whole = {"type": "worker", "index": text}
        yield tf_config({"cluster": TWO, "task": whole})
    hosts = ["a\0:1", "http://a:1", "::1:2222", "[::1]:2222", "a:١", "é:1"]
    hosts += ["a b:1", "a:1,b:2", "a:1/x", "A:1", "a.:1", "x" * 300 + ":1"]
    for host in hosts:
        yield tf_config({"cluster": {"worker": [host, "b:1"]}, "task": FIRST})
        yield Call(
            f"--worker_hosts={host}",
            lambda h=host: resolve_cluster(
                worker_hosts=[h, "b:1"], task_index=0, environ={}
            ),
        )


def of_scheduler(scheduler, environ, name, text):
    return Call(
        f"{scheduler}: {name}={text}",
        lambda: [
            resolve_cluster(environ=environ, ps=ps) for ps in (False, True)
        ],
    )


def tf_config(config):
    text = json.dumps(config)
    return Call(text, lambda: resolve_cluster(environ={"TF_CONFIG": text}))


class Silent:
    """Says nothing of itself."""

    def __repr__(self):
        raise ValueError("no repr")


def circle():
    found: list = []
    found.append(found)
    return found


def generator():
    yield 5


# By name, as not all of them can be shown.
OBJECTS: dict[str, Any] = {
    repr(one): one
    for one in (None, True, -1, 0, 1, 7, 1.5, 10**30, 1j, "", "x", "auto", b"x")
}
OBJECTS |= {repr(one): one for one in ([], {}, (), [5], {"a": 5}, {5: "a"})}
OBJECTS |= {repr(one): one for one in (set(), range(3), ..., int, len)}
OBJECTS |= {
    "nan": float("nan"),
    "inf": float("inf"),
    "escapes": "\x1b[31mx\n\0",
    "surrogate": "\udcff",
    "long": "y" * 300,
    "deep": json.loads("[" * 500 + "]" * 500),
    "circle": circle(),
    "nothing to say": Silent(),
    "object": object(),
    "function": lambda: 5,
    "of one": lambda x: x,
    "generator": generator(),
    "a day": datetime.date(2026, 1, 1),
    "path": pathlib.Path("nowhere"),
    "error": ValueError("x"),
    "array": np.zeros((2, 2), "float32"),
    "no examples": np.zeros((0, 2), "float32"),
    "a number's array": np.array(5),
    "objects": np.array([None, "x"], dtype=object),
    "text array": np.array(["x", "y"]),
    "bool array": np.array([True, False]),
    "complex array": np.zeros(2, "complex64"),
    "records": np.zeros(2, [("a", "int32")]),
    "tensor": tf.constant([1.0, 2.0]),
    "text tensor": tf.constant("x"),
    "ragged": tf.ragged.constant([[1.0], [2.0, 3.0]]),
    "sparse": tf.sparse.from_dense([[1.0, 0.0]]),
    "variable": tf.Variable(1.0),
    "dataset": tf.data.Dataset.range(4),
    "endless": tf.data.Dataset.from_tensors((1.0, 1.0)).repeat(),
    "spec": tf.TensorSpec([2]),
    "layer": keras.layers.Dense(1),
    "symbolic": keras.Input((4,)),
    "loss": keras.losses.MeanSquaredError(),
    "metric": keras.metrics.Mean(),
    "optimizer": keras.optimizers.SGD(),
    "callback": keras.callbacks.Callback(),
    "class": keras.Layer,
    "strategy": tf.distribute.get_strategy(),
    "module": np,
    "ufunc": np.add,
}
X = np.linspace(0, 1, 32, dtype="float32").reshape(8, 4)
Y = X.sum(axis=1, keepdims=True)


def net():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


def make(**given):
    whole = {"model": net, "loss": "mse", "data": {"train": (X, Y)}}
    whole |= {"strategy": "default", "batch_size": 4, "jit_compile": False}
    return Trainer(**{**whole, **given})


TRAINER = ["model", "data", "strategy", "batch_size", "data_dir"]
FIT = ["batch_size", "epochs", "verbose", "callbacks", "validation_split"]
FIT += ["validation_data", "shuffle", "class_weight", "sample_weight"]
FIT += ["initial_epoch", "steps_per_epoch", "validation_steps"]
FIT += ["validation_batch_size", "validation_freq", "steps_per_loop"]


def of_arguments():
    """Arguments of the Trainer; it is built, and does not train."""
    for name in (*TRAINER, *Recipe.arguments()):
        for shown, value in OBJECTS.items():
            yield Call(
                f"Trainer({name}={shown})",
                lambda n=name, v=value: make(**{n: v}).build(),
            )


def of_calls():
    """Arguments of the calls that train, evaluate, predict and save."""
    options = [
        name
        for name, (_, facts) in declared_in(RunOptions).items()
        if facts.in_python
    ]
    for shown, value in OBJECTS.items():
        for name in FIT:
            given = {"x": X, "y": Y, "verbose": 0, name: value}
            if name.startswith("validation_") and "data" not in name:
                given.setdefault("validation_data", (X, Y))
            yield Call(f"fit({name}={shown})", lambda g=given: make().fit(**g))
        for name in ("steps", "model_dir", "callbacks", *options):
            given = {"steps": 1, "verbose": 0, name: value}
            yield Call(
                f"train({name}={shown})",
                lambda g=given: _in_folder(
                    lambda g=g: make(data=(X, Y)).train_and_evaluate(**g)
                ),
            )
        yield Call(
            f"save({shown})",
            lambda v=value: _in_folder(lambda v=v: make().save(v)),
        )


def of_data():
    """Inputs and targets."""
    for shown, value in OBJECTS.items():
        for what, given in {
            "x": (value, Y),
            "y": (X, value),
            "weights": (X, Y, value),
            "x in a list": ([value], Y),
            "y in a dict": (X, {"a": value}),
            "x alone": (value,),
            "a pair": ((value, value),),
        }.items():
            yield Call(f"fit: {what} = {shown}", lambda g=given: _fit_once(*g))
        yield Call(
            f"evaluate: x = {shown}",
            lambda v=value: make().evaluate(v, Y, verbose=0),
        )
        # Of rows of several lengths, only what computes with them knows.
        if shown != "ragged":
            yield Call(
                f"predict: x = {shown}",
                lambda v=value: make().predict(v, verbose=0),
            )
        yield Call(
            f"data = function of {shown}",
            lambda v=value: make(data=lambda split, v=v: v).train(1, verbose=0),
        )


def _fit_once(x, y=None, weights=None):
    make().fit(x, y, sample_weight=weights, steps_per_epoch=1, verbose=0)


def _in_folder(call):
    """Calls in a folder of its own, whose file must be left."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        kept = pathlib.Path("notes.txt")
        kept.write_text("of the user")
        try:
            call()
        finally:
            assert kept.read_text() == "of the user"


DOORS = {
    "flags": of_flags,
    "launcher": of_launcher,
    "gin": of_gin,
    "environment": of_environment,
    "arguments": of_arguments,
    "calls": of_calls,
    "data": of_data,
}


def calls_of(door):
    """All calls of a door, each once."""
    return list({call.what: call for call in DOORS[door]()}.values())
