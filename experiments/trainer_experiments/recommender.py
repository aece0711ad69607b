"""A recommender: a vector for each user and each item, on servers if large."""

import keras

from trainer.plugin_api import configurable
from trainer_experiments.models import Width
from trainer_experiments.standard_library import used_names

layers = keras.layers


@configurable(module="experiments")
def recommender(*, width: Width = 32) -> keras.Model:
    """Scores pairs of `standard_library`: modules choose names.

    Each step reads and updates the few rows that its batch names, however many
    there are, and only these travel to and from parameter servers.

    Args:
        width: of the vectors.

    Returns:
        A model from `module` and `name`, numbers `[batch]`, to a logit,
        `[batch, 1]`.
    """
    _, modules, names = used_names()
    module = keras.Input((), dtype="int32", name="module")
    name = keras.Input((), dtype="int32", name="name")
    vectors = [
        layers.Embedding(len(modules), width, name="of_modules")(module),
        layers.Embedding(len(names), width, name="of_names")(name),
    ]
    logit = layers.Dot(1)(vectors)
    popularity = layers.Embedding(len(names), 1, "zeros", name="popularity")
    logit = layers.Add(dtype="float32")([logit, popularity(name)])
    return keras.Model(
        {"module": module, "name": name}, logit, name="recommender"
    )
