"""Every parameter of every configurable of ours refuses what is wrong.

What is right for which parameter is written down here by hand: the annotations
that are tested say nothing about it.
"""

import inspect
import math

import keras
import pytest

import trainer.experiment  # noqa: F401 - registers `run`
import trainer_experiments.contrastive
import trainer_experiments.distillation
import trainer_experiments.gan
import trainer_experiments.hub
import trainer_experiments.image_records
import trainer_experiments.mnist
import trainer_experiments.recommender
import trainer_experiments.resnet
import trainer_experiments.transformer
import trainer_experiments.vae  # noqa: F401
from trainer import Guard, Trainer, UserError
from trainer.cli.config import gin_private
from trainer.strategy.registry import load_plugins
from trainer_plugins.callbacks.progress import Progress
from trainer_plugins.strategies.default import Default

OURS = ("trainer", "trainer_plugins", "trainer_experiments")


def function(*args, **kwargs):
    """A function."""


VALUES = {
    "a word": "x",
    "no word": "",
    "True": True,
    "-1": -1,
    "0": 0,
    "1": 1,
    "2": 2,
    "0.5": 0.5,
    "2.5": 2.5,
    "1e30": 1e30,
    "1e300": 1e300,
    "10**30": 10**30,
    "NaN": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "[]": [],
    "[5]": [5],
    "['a']": ["a"],
    "[class]": [Progress],
    "[None]": [None],
    "{}": {},
    "{1: 2}": {1: 2},
    "{'a': 'b'}": {"a": "b"},
    "{-1: 2}": {-1: 2},
    "None": None,
    "object": object(),
    "class": Progress,
    "Guard": Guard,
    "function": function,
    "iterator": iter([1]),
}
WHOLE = {"1", "2"}
SOME = WHOLE | {"0.5", "2.5"}
FUNCTIONS = {"function"}
# The names of the values above that are right, by kind of parameter.
RIGHT = {
    "whole": WHOLE,
    "whole or 0": WHOLE | {"0"},
    "threads": {"2"},
    "devices": WHOLE,
    "seconds": SOME,
    "number > 0": SOME | {"1e30", "10**30"},
    "number > 1": {"2", "2.5", "1e30", "10**30"},
    "number >= 0": SOME | {"0", "1e30", "10**30"},
    "number": SOME | {"0", "-1", "1e30", "10**30"},
    "temperature": SOME,
    "fraction": {"0.5"},
    "share": {"0", "0.5", "1"},
    "limit": WHOLE | {"0.5"},
    "steps": set(),
    "flag": {"True"},
    "text": {"a word"},
    "names": {"a word", "['a']"},
    "choice": set(),
    "url": {"no word"},
    "period": WHOLE,
    "time": set(),
    "callbacks": {"[]"},
    "list of names": {"[]", "['a']"},
    "model": FUNCTIONS,
    "function": FUNCTIONS | {"class", "Guard"},
    "trainer": FUNCTIONS,
    # An iterator is refused in other words, which say what to give instead.
    "data": FUNCTIONS | {"class", "Guard", "[class]", "iterator"},
    "loss": FUNCTIONS | {"None", "[]", "{}", "[None]"},
    "weights": SOME
    | {"0", "-1", "1e30", "1e300", "None", "[5]", "[None]", "[]", "{}"}
    | {"10**30", "{1: 2}", "{-1: 2}"},
    "classes": {"{1: 2}"},
    "optimizer": FUNCTIONS,
    "metrics": FUNCTIONS
    | {"None", "a word", "no word", "[]", "{}", "[None]", "['a']"}
    | {"{'a': 'b'}"},
    "added": {"{}"},
    "object": set(),
    "formats": set(),
    "shape": set(),
    # From 32 on.
    "crop": set(),
}
# By configurable; with a question mark where `None` is right, too.
PARAMETERS = {
    "Trainer": {
        "model": "model",
        "loss": "loss",
        "loss_weights": "weights",
        "class_weight": "classes?",
        "optimizer": "optimizer?",
        "metrics": "metrics",
        "data": "data?",
        "strategy": "text",
        "batch_size": "whole?",
        "seed": "whole or 0",
        "learning_rate": "number >= 0?",
        "data_dir": "text?",
        "precision": "choice?",
        "accumulation_steps": "whole",
        "ema_momentum": "fraction?",
        "jit_compile": "flag",
        "sync_batch_norm": "flag",
        "added_losses": "added?",
        "recompute": "list of names",
        "guard": "object?",
        "run_eagerly": "flag",
        "find_nan": "flag",
    },
    "WholeSetMetric": {"function": "function", "name": "text?"},
    "Guard": {
        "action": "choice",
        "max_loss": "number?",
        "max_gradient_norm": "number > 0?",
        "max_growth": "number > 1?",
        "max_rollbacks": "whole",
    },
    "run": {
        "mode": "choice",
        "model_dir": "text",
        "trainer": "trainer",
        "strategy": "text",
        "train_steps": "whole",
        "max_time": "time?",
        "eval_every": "period?",
        "eval_split": "text?",
        "eval_steps": "whole?",
        "eval_timeout": "time",
        "eval_poll_seconds": "seconds",
        "best_monitor": "text",
        "best_mode": "choice",
        "log_every": "period",
        "steps_per_loop": "whole",
        "form_cache": "flag",
        "callbacks": "callbacks",
        "init_from": "text?",
        "init_only": "text?",
        "devices": "names?",
        "tpu": "text?",
        "tpu_topology": "text?",
        "fit_batch": "flag",
        "worker_hosts": "names?",
        "ps_hosts": "names?",
        "task_type": "choice?",
        "task_index": "whole or 0?",
        "virtual_devices": "devices?",
        "deterministic": "flag",
        "profile": "steps?",
    },
    "Checkpoint": {
        "every": "period?",
        "keep_last": "whole",
        "keep_best": "whole or 0",
        "monitor": "text",
        "mode": "choice",
        "load_best": "flag",
        "asynchronous": "flag",
    },
    "EarlyStopping": {
        "monitor": "text",
        "mode": "choice",
        "patience": "whole",
        "min_delta": "number >= 0",
        "stop_at": "number?",
    },
    "Export": {"formats": "formats"},
    "JsonLines": {},
    "CSV": {},
    "ConfusionMatrix": {"batches": "whole?"},
    "SampleImages": {"count": "whole"},
    "LayerStatistics": {"every": "whole", "histograms": "flag"},
    "MLflow": {"tracking_uri": "text?", "experiment": "text"},
    "WandB": {"project": "text?", "entity": "text?", "mode": "choice?"},
    "Preemption": {
        "grace_seconds": "seconds?",
        "metadata_url": "url?",
        "poll_seconds": "seconds",
    },
    "Progress": {"console": "object?"},
    "TensorBoard": {},
    "Watchdog": {
        "step_seconds": "seconds",
        "checkpoint_seconds": "seconds",
        "evaluation_seconds": "seconds",
    },
    "Default": {},
    "OneDevice": {"devices": "names?"},
    "Mirrored": {
        "devices": "names?",
        "all_reduce": "choice",
        "num_packs": "whole or 0",
    },
    "CentralStorage": {"devices": "names?", "parameter_device": "text?"},
    "TPU": {"tpu": "text?", "tpu_topology": "text?", "fit_batch": "flag"},
    "MultiWorkerMirrored": {
        "worker_hosts": "names?",
        "task_index": "whole or 0?",
        "task_type": "choice?",
        "implementation": "choice",
        "bytes_per_pack": "whole or 0",
        "timeout_seconds": "seconds",
        "start_seconds": "seconds",
        "silence_seconds": "seconds",
        "min_workers": "whole?",
    },
    "ParameterServer": {
        "worker_hosts": "names?",
        "ps_hosts": "names?",
        "task_type": "choice?",
        "task_index": "whole or 0?",
        "steps_per_closure": "whole?",
        "evaluate_on": "choice",
        "max_staleness": "whole or 0?",
        "inter_op_threads": "threads?",
        "timeout_seconds": "seconds",
        "start_seconds": "seconds",
        "silence_seconds": "seconds",
    },
    "SimCLR": {"temperature": "temperature"},
    "encoder": {"units": "whole", "width": "whole"},
    "conv_net": {
        "input_shape": "shape",
        "filters": "whole",
        "units": "whole",
        "num_classes": "whole",
    },
    "digits": {"split": "choice"},
    "two_views": {"split": "choice"},
    "mnist": {"split": "choice", "data_dir": "text?"},
    "image_records": {
        "split": "choice",
        "data_dir": "text?",
        "image_size": "whole",
        "num_classes": "whole",
    },
    "resnet50": {
        "image_size": "whole",
        "crop_size": "crop",
        "num_classes": "whole",
    },
    "resnet50_of_digits": {"bn_momentum": "fraction"},
    "vae": {"units": "whole", "latent": "whole"},
    "DecodedImages": {},
    "gan": {"filters": "whole", "latent": "whole"},
    "thumbnail_distance": {},
    "GeneratedImages": {},
    "transformer": {
        "length": "whole",
        "width": "whole",
        "blocks": "whole",
        "heads": "whole",
    },
    "GeneratedText": {
        "prompt": "text",
        "characters": "whole",
        "temperature": "temperature",
    },
    "python_text": {"split": "choice", "length": "whole"},
    "Distillation": {"temperature": "temperature", "label_weight": "share"},
    "student_and_teacher": {
        "teacher": "text",
        "input_shape": "shape",
        "units": "whole",
        "num_classes": "whole",
    },
    "recommender": {"width": "whole"},
    "names_in_functions": {"split": "choice"},
    "vision_transformer": {
        "image_shape": "shape",
        "patch_size": "whole",
        "blocks": "whole",
        "heads": "whole",
        "width": "whole",
        "num_classes": "whole",
    },
}
# Trainers that have no parameters of their own.
PLAIN = ("GAN", "VAE")
# What a call needs beside the value that is tried.
NEEDED = {
    "WholeSetMetric": {"function": lambda y, y_pred: 0.0},
    "python_text": {"split": "train"},
    "Trainer": {"model": lambda: keras.Sequential()},
    "run": {"mode": "train", "model_dir": "unused"},
    "SimCLR": {"model": lambda: keras.Sequential()},
    "mnist": {"split": "train"},
    "image_records": {"split": "train"},
    "VAE": {"model": lambda: keras.Sequential()},
    "GAN": {"model": lambda: keras.Sequential()},
    "Distillation": {"model": lambda: keras.Sequential()},
    "student_and_teacher": {"teacher": "teacher.keras"},
}


def ours():
    load_plugins()
    return {
        selector.split(".")[-1]: gin_private.wrapped(selector)
        for selector in gin_private.complete_selectors()
        if gin_private.wrapped(selector).__module__.split(".")[0] in OURS
    }


def cases():
    return [
        (owner, parameter, kind)
        for owner, parameters in PARAMETERS.items()
        for parameter, kind in parameters.items()
    ]


def test_none_is_left_out():
    found = {
        name: {
            parameter.name
            for parameter in inspect.signature(one).parameters.values()
            if parameter.kind
            not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }
        for name, one in ours().items()
    }
    expected = {one: set(names) for one, names in PARAMETERS.items()}
    expected |= {one: set(PARAMETERS["Trainer"]) for one in PLAIN}
    assert found == expected


@pytest.mark.parametrize(("owner", "parameter", "kind"), cases())
def test_what_is_wrong_is_refused(owner, parameter, kind):
    right = RIGHT[kind.removesuffix("?")]
    if kind.endswith("?"):
        right = right | {"None"}
    accepted = []
    for name, value in VALUES.items():
        if name in right:
            continue
        try:
            ours()[owner](**{**NEEDED.get(owner, {}), parameter: value})
        except UserError as error:
            sentence = str(error).splitlines()[0]
            if sentence.startswith(f"{owner}.{parameter} = "):
                assert " must be " in sentence
                assert len(sentence) < 300
                continue
        accepted.append(name)
    assert not accepted


@pytest.mark.parametrize(
    ("owner", "options"),
    [
        (Trainer, {"learning_rate": 0, "seed": 2**32 - 1, "data": function}),
        (Trainer, {"loss": ["mse", None], "loss_weights": {"a": 1, "b": None}}),
        (Trainer, {"optimizer": {"a": "sgd", "b": keras.optimizers.Adam}}),
        (Trainer, {"metrics": {"a": ["mae", keras.metrics.Mean]}}),
        (Trainer, {"metrics": [keras.metrics.Mean(), function]}),
        (Trainer, {"loss": keras.losses.Huber, "strategy": Default()}),
        (Trainer, {"loss": keras.losses.Huber(), "class_weight": {0: 1}}),
        (Trainer, {"added_losses": {"a": "sum"}, "guard": Guard("roll_back")}),
        (Trainer, {"jit_compile": "auto"}),
        (Trainer, {"jit_compile": "xla_stack"}),
        (Trainer, {"optimizer": "AdamW", "precision": "mixed_bfloat16"}),
    ],
)
def test_what_is_right_is_taken(owner, options):
    owner(**{**NEEDED["Trainer"], **options})


@pytest.mark.parametrize("owner", ours())
def test_the_defaults_are_right(owner):
    """As far as that can be tried without running anything."""
    one = ours()[owner]
    if not inspect.isclass(one) or owner in ("ParameterServer", "SimCLR"):
        return
    defaults = {
        parameter.name: parameter.default
        for parameter in inspect.signature(one).parameters.values()
        if parameter.default is not parameter.empty
    }
    one(**{**NEEDED.get(owner, {}), **defaults})
