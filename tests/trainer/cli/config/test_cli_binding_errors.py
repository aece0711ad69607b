import gin
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
    origins = configure("Adam.lr = 0.1\n")
    assert "Adam.lr = 0.1" in str(translated(origins, "Adam"))


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
