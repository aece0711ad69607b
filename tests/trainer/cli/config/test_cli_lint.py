import gin
import pytest

from tests.trainer.cli.tiny import IMPORT
from trainer.cli.config.lint import check_all_used, unused_bindings
from trainer.errors import UserError
from trainer.strategy.registry import find_strategy


def call(*names):
    for name in names:
        gin.get_configurable(name)()


def check(origins, **options):
    check_all_used(origins, selected=find_strategy("one_device"), **options)


def test_used_bindings_pass(configure):
    origins = configure(
        IMPORT
        + "width = 3\nlinear.units = %width\nlinear.activation = 'relu'\n"
    )
    call("linear")
    check(origins)


def test_an_unused_binding_is_named_with_place_and_nearest(configure):
    origins = configure(IMPORT + "linear.units = 2\nbroken_model.units = 2\n")
    call("linear")
    with pytest.raises(UserError) as error:
        check(origins)
    message = str(error.value)
    assert "broken_model.units" in message
    assert "given.gin, line 3" in message
    assert "linear.units (" not in message
    assert len(message.splitlines()) <= 3


def test_a_value_that_the_caller_gives_is_unused(configure):
    configure(IMPORT + "linear.units = 2\n")
    gin.get_configurable("linear")(units=4)
    assert [found[2] for found in unused_bindings()] == ["units"]


def test_scopes(configure):
    configure(
        IMPORT + "linear.units = 2\na/linear.units = 3\nb/linear.units = 4\n"
    )
    call("a/linear")
    assert {found[0] for found in unused_bindings()} == {"", "b"}
    call("linear")
    assert {found[0] for found in unused_bindings()} == {"b"}


def test_macros_count_where_nothing_refers_to_them(configure):
    configure(IMPORT + "width = 3\nlinear.units = %width\nwidht = 4\n")
    call("linear")
    assert unused_bindings() == [("widht", "gin.macro", "value")]


def test_other_strategies_are_exempt_with_what_they_refer_to(configure):
    mirrored = find_strategy("mirrored")
    gin.clear_config()  # Forgets that call.
    origins = configure(
        IMPORT + "packs = 2\nMirrored.num_packs = %packs\n"
        "Mirrored.all_reduce = @a/reduction()\na/reduction.kind = 'nccl'\n"
        "linear.units = 2\n"
    )
    call("linear")
    check(origins)
    with pytest.raises(UserError, match="Mirrored.num_packs"):
        check_all_used(origins, selected=mirrored)


def test_what_a_named_flag_replaces_is_exempt(configure):
    origins = configure("Adam.learning_rate = 0.1\n", "--learning_rate=0.5")
    gin.get_configurable("Adam")(learning_rate=0.5)
    flags = {"learning_rate": "--learning_rate=0.5"}
    with pytest.raises(UserError) as error:
        check(origins, flags=flags)
    # Only the flag itself is left, since no Trainer was made.
    assert "(--learning_rate=0.5)" in str(error.value)
    assert "given.gin" not in str(error.value)


def test_warns_on_demand(configure, caplog):
    origins = configure(IMPORT + "linear.units = 2\n")
    check(origins, only_warn=True)
    assert "linear.units" in caplog.text
