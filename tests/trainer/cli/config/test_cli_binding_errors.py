import gin
import numpy as np
import pytest

from tests.trainer.cli.tiny import IMPORT
from trainer.cli.config.binding_errors import user_error_in
from trainer.errors import UserError


def translated(origins, name, *arguments, **options):
    with pytest.raises(Exception) as error:  # noqa: PT011 - any may come
        gin.get_configurable(name)(*arguments, **options)
    return user_error_in(error.value, origins)


def test_a_value_that_keras_refuses(configure):
    origins = configure("Adam.learning_rate = 1\n")
    message = str(translated(origins, "Adam"))
    assert "Adam.learning_rate = 1 " in message
    assert "given.gin, line 1" in message
    assert "float" in message
    assert "\n" not in message


def test_an_unknown_keyword_of_keras(configure):
    text = "keras.layers.Dense.units = 1\nkeras.layers.Dense.colour = 'red'\n"
    found = str(translated(configure(text), "keras.layers.Dense"))
    assert "Dense.colour = 'red' " in found
    assert "given.gin, line 2" in found


def test_a_missing_argument(configure):
    origins = configure("")
    assert "units" in str(translated(origins, "keras.layers.Dense"))


def test_an_unknown_keyword_behind_kwargs(configure):
    origins = configure(IMPORT)
    found = translated(origins, "ScaledTrainer", model=None, colour="red")
    assert "colour" in str(found)


def test_required(configure):
    origins = configure(IMPORT)
    assert "units" in str(translated(origins, "linear", gin.REQUIRED))


def test_a_bug_in_user_code_is_not_translated(configure):
    origins = configure(IMPORT + "broken_model.units = -3\n")
    assert translated(origins, "broken_model") is None


def test_a_user_error_is_passed_on(configure):
    origins = configure(IMPORT + "ScaledTrainer.batch_size = 0\n")
    found = translated(origins, "ScaledTrainer", model=lambda: None)
    assert isinstance(found, UserError)


def test_what_does_not_come_from_gin(configure):
    with pytest.raises(ValueError, match="invalid literal") as error:
        int("x")
    assert user_error_in(error.value, configure("")) is None


def test_a_value_that_keras_refuses_when_it_uses_it(configure):
    name = "losses.CategoricalCrossentropy"
    origins = configure(f"{name}.axis = 7\n")
    loss = gin.get_configurable(name)()
    with pytest.raises(Exception) as error:  # noqa: PT011 - any may come
        loss(np.ones((2, 3)), np.ones((2, 3)))
    message = str(user_error_in(error.value, origins))
    assert f"{name}.axis = 7 (" in message
    assert "given.gin, line 1) cannot be used: " in message
    # Another fault in the same place is not blamed on it.
    with pytest.raises(Exception) as error:  # noqa: PT011 - any may come
        loss("x", object())
    assert user_error_in(error.value, origins) is None


def test_a_value_that_only_a_call_gives(configure):
    text = "Trainer.batch_size = @tower()\ntower.width = 0\n"
    origins = configure(IMPORT + text)
    found = translated(origins, "Trainer", model=lambda: None)
    assert str(found).startswith("Trainer.batch_size = 0 (")
    assert str(found).endswith("line 2) must be a whole number >= 1 or None.")
    # Under the name by which it was bound, not that of the base class.
    gin.clear_config()
    text = "ScaledTrainer.batch_size = @tower()\ntower.width = 0\n"
    origins = configure(IMPORT + text)
    found = translated(origins, "ScaledTrainer", model=lambda: None)
    assert str(found).startswith("ScaledTrainer.batch_size = 0 (")
