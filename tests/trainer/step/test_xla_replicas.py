"""XLA compiles the gradients of each of several replicas."""

import keras
import numpy as np
import pytest

from tests.trainer.step.reductions.exact import found_in, pairs, run_cases
from trainer import Guard, Trainer, UserError

# Four models, each compiled three times.
pytestmark = pytest.mark.long

MODULE = "tests.trainer.step.test_xla_replicas"
_RANDOM = np.random.default_rng(0)
# A last, short batch: the replicas' shares of it are 3 and 2 examples.
X = _RANDOM.normal(size=(53, 4)).astype("float32")
Y = X[:, :1] - X[:, 1:2] * 0.5
STEPS = 12


class OwnStep(Trainer):
    """Never gets as far as its step."""

    def train_step(self, batch):
        raise AssertionError


def net(*layers):
    def model():
        keras.utils.set_random_seed(0)
        dense = keras.layers.Dense
        return keras.Sequential(
            [keras.Input((4,)), dense(6, kernel_regularizer="l2")]
            + [*(make() for make in layers), dense(1)]
        )

    return model


SOUND = {
    "plain": {"metrics": ["mae"]},
    "micro_batches": {"accumulation_steps": 2},
    "guarded_and_averaged": {"guard": Guard(), "ema_momentum": 0.9},
    "loss_scale": {"precision": "mixed_float16"},
    "several": {
        "metrics": ["mae"],
        "accumulation_steps": 2,
        "guard": Guard(),
        "ema_momentum": 0.9,
    },
}
ORDINARY = ("loss_scale", "several")
REFUSED = {
    "norm": (
        {"model": net(keras.layers.BatchNormalization)},
        "the layer 'batch_normalization' reduces over replicas",
    ),
    "own_step": (
        {"kind": OwnStep},
        "a train_step of its own may reduce over replicas",
    ),
    "central_storage": (
        {"strategy": "central_storage"},
        "XLA cannot compile a step of 3 replicas",
    ),
}


def trained(form, ends, *, kind=Trainer, **options):
    defaults = {
        "model": net(),
        "loss": "mse",
        "optimizer": lambda: keras.optimizers.Adam(0.01),
        "data": lambda split: (X, Y),
        "batch_size": 8,
    }
    trainer = kind(jit_compile=form, **{**defaults, **options})
    for end in ends:
        trainer.train(end, steps_per_loop=3, verbose=0)
    return np.concatenate([w.ravel() for w in trainer.model.get_weights()])


def _case(name):
    def case(strategy):
        options = {"strategy": strategy, **SOUND[name]}
        found = {f: trained(f, [STEPS], **options) for f in ("graph", "xla")}
        # Each call reads its input anew, as a run that goes on does.
        return found | {"cut": trained("xla", [1, 7, STEPS], **options)}

    case.__name__ = name
    return case


def refusals(strategy):
    found = {}
    for name, (options, _) in REFUSED.items():
        try:
            trained("xla", [1], **{"strategy": strategy, **options})
        except UserError as error:
            found[name] = str(error)
    return found


WEIGHTS = {_case(name): ("mirrored_2",) for name in SOUND}
CASES = {**WEIGHTS, refusals: ("mirrored_2",)}
LONG = [(name, "mirrored_2") for name in SOUND if name not in ORDINARY]


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, root):
    directory = tmp_path_factory.mktemp("replicas")
    return run_cases(MODULE, request, directory, root, LONG)


@pytest.mark.parametrize(("name", "strategy"), pairs(WEIGHTS, LONG))
def test_they_are_those_of_the_graph(results, name, strategy):
    """Up to rounding; and to the byte wherever a run is cut."""
    found = found_in(results, name, strategy)
    graph, whole, cut = (found[key] for key in ("graph", "xla", "cut"))
    np.testing.assert_allclose(whole, graph, rtol=2e-3, atol=2e-4)
    assert whole.tobytes() == cut.tobytes()
    assert whole.tobytes() != graph.tobytes()


@pytest.mark.parametrize("name", REFUSED)
def test_what_reduces_over_replicas_is_refused(results, name):
    said = found_in(results, "refusals", "mirrored_2")[name]
    assert REFUSED[name][1] in str(said)
