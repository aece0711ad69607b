"""What the parameters of configurables admit, and what is said of the rest."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

import gin
import numpy as np
import pytest
from annotated_types import Ge, Lt, Predicate
from typing_extensions import Doc

import trainer.experiment  # noqa: F401 - registers `run`
import trainer_experiments.contrastive
import trainer_experiments.distillation
import trainer_experiments.gan
import trainer_experiments.image_records
import trainer_experiments.resnet
import trainer_experiments.transformer
import trainer_experiments.vae  # noqa: F401
from trainer import UserError
from trainer.cli.config.gin_private import REGISTRY
from trainer.strategy.registry import load_plugins
from trainer.values.annotations import Natural, Positive, Seconds
from trainer.values.checks import check
from trainer.values.configurable import checked, configurable, types_of


class Part:
    """Something that no built-in type stands for."""


class Only(Protocol):
    """What mypy checks."""


@configurable
class Machine:
    """Keeps what it is given."""

    def __init__(
        self,
        size: Positive = 1,
        *,
        seconds: Seconds | None = None,
        on: bool = True,
        mode: Literal["fast", "slow"] = "fast",
        parts: Sequence[Part] = (),
        weights: Mapping[int, float] | None = None,
        make: Callable[..., Part] | None = None,
        stream: Iterable[int] = (),
        odd: Annotated[
            int, Predicate(lambda n: n % 2 == 1), Doc("an odd number")
        ] = 1,
        ratio: Annotated[float, Ge(0), Lt(1)] = 0.0,
        protocol: Only | None = None,
        anything: Any = None,
        bare=None,
    ) -> None:
        self.given = {k: v for k, v in locals().items() if k != "self"}


class Larger(Machine):
    """A subclass as users write them."""

    def __init__(self, name="x", **kwargs):
        super().__init__(**kwargs)
        self.name = name


@configurable
def area(width: Natural, height: Natural = 1) -> int:
    """A function."""
    return width * height


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("size", "x", "'x' must be a whole number >= 1."),
        ("size", 0, "0 must be"),
        ("size", True, "True must be"),
        ("size", 1.0, "1.0 must be"),
        ("size", None, "None must be"),
        ("size", np.float32(1), "must be"),
        (
            "size",
            2**64,
            "a whole number >= 1, and not so large.",
        ),
        ("seconds", 0, "0 must be a number > 0 or None."),
        ("seconds", NAN, "nan must be"),
        ("seconds", INF, "inf must be a number > 0 or None, and not so large"),
        ("seconds", True, "True must be"),
        ("seconds", "5", "'5' must be"),
        ("on", 1, "1 must be True or False."),
        ("on", "no", "'no' must be"),
        ("on", None, "None must be"),
        ("mode", "fsat", "'fast' or 'slow'. Did you mean 'fast'?"),
        ("mode", 5, "5 must be"),
        ("parts", 5, "5 must be a list, each of it a Part object."),
        ("parts", "ab", "'ab' must be"),
        ("parts", {}, "{} must be"),
        ("parts", [Part], "[Part] must be .* write @Part(), with parentheses."),
        ("parts", Part(), "<Part object> must be"),
        ("weights", {"a": 1}, "must be a dict from a whole number to a number"),
        ("weights", {1: NAN}, "must be"),
        ("make", Part(), "must be a function or None. In gin, write @Part, "),
        ("make", 5, "5 must be a function or None."),
        ("stream", 5, "must be"),
        ("odd", 2, "2 must be an odd number."),
        ("ratio", 1, "1 must be a number >= 0 and < 1."),
    ],
)
@pytest.mark.parametrize("make", [Machine, Larger])
def test_a_wrong_value_is_a_sentence(make, name, value, words):
    with pytest.raises(UserError) as error:
        make(**{name: value})
    sentence = str(error.value).splitlines()[0]
    assert sentence.startswith(f"{make.__name__}.{name} = ")
    assert all(part in sentence for part in words.split(" .* "))


def test_what_is_right_is_passed_on_as_it_is():
    numbers = iter([1, 2, 3])
    given = {
        "seconds": 5,
        "parts": [Part()],
        "weights": {0: 1},
        "make": Part,
        "stream": numbers,
        "anything": iter("abc"),
        "bare": [object()],
        "protocol": 5,
        "ratio": np.float64(0.5),
        "odd": 3,
    }
    kept = Larger(**given).given
    for name, value in given.items():
        assert kept[name] is value
    assert list(numbers) == [1, 2, 3]
    assert list(given["anything"]) == ["a", "b", "c"]


def test_functions_and_positions():
    assert area(2, 3) == 6
    with pytest.raises(UserError, match="area.height = -1 must be"):
        area(2, -1)
    with pytest.raises(UserError, match="Machine.size = 'x' must be"):
        Machine("x")


def test_a_call_that_does_not_fit():
    with pytest.raises(
        UserError,
        match="Machine has no argument 'sizes'. Did",
    ):
        Machine(sizes=1)
    with pytest.raises(
        UserError, match="area: missing a required argument: 'width'"
    ):
        area()
    assert area(1) == 1
    with pytest.raises(UserError, match="positional argument"):
        area(1, 2, 3)


def test_gin_knows_the_parameters():
    assert "size" in inspect.signature(Machine).parameters
    assert list(inspect.signature(area).parameters) == ["width", "height"]
    with gin.unlock_config():
        gin.bind_parameter("Machine.size", 7)
        with pytest.raises(ValueError, match="doesn't have a parameter"):
            gin.bind_parameter("Machine.sizes", 7)
        assert Machine().given["size"] == 7
        gin.bind_parameter("Machine.size", 0)
        with pytest.raises(UserError, match="Machine.size = 0 must be"):
            Machine()
        gin.clear_config()


def test_a_class_without_a_constructor():
    class Plain(Machine):
        """Inherits it."""

    assert checked(Plain).__init__ is Machine.__init__
    with pytest.raises(UserError, match="Plain.size"):
        Plain(size="x")


def test_a_long_value_is_shortened():
    with pytest.raises(UserError) as error:
        area("x" * 10_000)
    assert len(str(error.value).splitlines()[0]) < 150


def test_the_rest_of_the_arguments_is_left_alone():
    @checked
    def rest(*numbers: int, **names: int) -> tuple:
        """Takes any number of arguments."""
        return numbers, names

    assert rest(1, "x", a=2, b="y") == ((1, "x"), {"a": 2, "b": "y"})


def test_numpys_numbers_and_truth_values_are_as_good_as_pythons():
    given = {
        "size": np.int32(3),
        "on": np.bool_(True),
        "seconds": np.float32(2),
        "weights": {np.int64(1): np.float64(0.5)},
    }
    made = Machine(**given)
    assert all(made.given[name] is value for name, value in given.items())
    with pytest.raises(UserError, match="must be a whole number >= 1"):
        Machine(size=np.int64(0))


def test_a_number_that_python_cannot_print_is_a_sentence():
    with pytest.raises(UserError, match="too many digits"):
        Machine(size=1 << 20_000)


OURS = ("trainer", "trainer_plugins", "trainer_experiments")
# These take values of many kinds, which the run tries.
FREE = {"console", "loss", "loss_weights"}


def of_ours():
    load_plugins()
    found = {selector: one.wrapped for selector, one in REGISTRY.items()}
    return {
        selector: one
        for selector, one in found.items()
        if one.__module__.split(".")[0] in OURS
    }


@pytest.mark.parametrize("selector", sorted(of_ours()))
def test_every_parameter_of_ours_is_annotated_and_its_default_right(selector):
    target = of_ours()[selector]
    types = types_of(target) or {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is not parameter.empty:
            check(selector, name, parameter.default, types[name])
        if name in ("data", "metric", "metrics"):
            continue  # What is wrong with them is said where they are read.
        wrong = [object(), *([] if name in FREE else [math.nan, [None]])]
        for value in wrong:
            with pytest.raises(UserError, match=f"{name} = .* must be "):
                check(selector, name, value, types[name])
