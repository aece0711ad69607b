"""Models and optimizers that hold more than their configuration says."""

import keras
import numpy as np
import tensorflow as tf

RNG = np.random.default_rng(0)
# Three batches of 16, and one of 2: under three replicas one is empty.
X = RNG.normal(size=(50, 4)).astype("float32")
FAR = 5 * X + 100
Y = RNG.normal(size=(50, 1)).astype("float32")
WORDS = np.array([["red"], ["green"], ["blue"], ["green"], ["red"]] * 10)
TEXT = np.array([["a b"], ["c d e"], ["b"], ["zz a"], ["d"]] * 10)
NUMBERS = np.array([[1], [2], [9], [4], [2]] * 10)


class Scaled(keras.layers.Layer):
    """Multiplies by a number, a variable, and one that Keras does not track."""

    def __init__(self, **options):
        super().__init__(**options)
        self.factor = 1.0
        self._shift = None
        self.of_itself = self.compute
        self.own = None

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")
        self.own = tf.Variable(1.0, trainable=False)

    def compute(self, x):
        return x * self.factor * self.scale * self.own

    def call(self, x):
        x = self.of_itself(x)
        return x if self._shift is None else x + self._shift


class Counted(keras.layers.Layer):
    """Saves what is no weight of it."""

    def build(self, shape):
        self.offset = tf.Variable(0.0, trainable=False)

    def call(self, x):
        return x + self.offset

    def save_own_variables(self, store):
        store["offset"] = self.offset.numpy()

    def load_own_variables(self, store):
        self.offset.assign(np.asarray(store["offset"]))


class Faster(keras.optimizers.SGD):
    """Has an attribute of its own."""

    factor = 1.0

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient * self.factor, variable, learning_rate)


class Centralized(keras.optimizers.SGD):
    """Changes gradients where `fit` hands them over."""

    def apply_gradients(self, grads_and_vars):
        changed = [
            (gradient - 0.5 * tf.reduce_mean(gradient), variable)
            for gradient, variable in grads_and_vars
        ]
        return super().apply_gradients(changed)


class Lookahead(keras.optimizers.SGD):
    """Has a second copy of the weights, which `apply_gradients` writes."""

    def build(self, variables):
        super().build(variables)
        self.slow = self.add_optimizer_variables(variables, "slow")
        for slow, variable in zip(self.slow, variables, strict=True):
            slow.assign(variable)

    def apply_gradients(self, grads_and_vars):
        pairs = list(grads_and_vars)
        super().apply_gradients(pairs)
        for slow, (_, variable) in zip(self.slow, pairs, strict=True):
            slow.assign(0.9 * slow + 0.1 * variable)
            variable.assign(slow)


class Doubled(keras.optimizers.SGD):
    """Writes the weights when `fit` ends."""

    def finalize_variable_values(self, var_list):
        for variable in var_list:
            variable.assign(2.0 * variable)


class Unregistered(keras.optimizers.schedules.LearningRateSchedule):
    """Keras could not make another one."""

    def __call__(self, step):
        return 0.1 / (1.0 + tf.cast(step, tf.float32))


CLASSES = Scaled, Counted


def dense(*first, shape=(4,), dtype="float32"):
    return keras.Sequential(
        [keras.Input(shape, dtype=dtype), *first, keras.layers.Dense(1)]
    )


def adapted(layer, data):
    layer.adapt(data)
    return layer


def normalization():
    return dense(adapted(keras.layers.Normalization(), FAR)), FAR


def normalization_not_built():
    first = adapted(keras.layers.Normalization(), FAR)
    # A copy is made with the same weights.
    seeded = keras.initializers.GlorotUniform(seed=1)
    last = keras.layers.Dense(1, kernel_initializer=seeded)
    return keras.Sequential([first, last]), FAR


def discretization():
    layer = keras.layers.Discretization(num_bins=4, output_mode="one_hot")
    return dense(adapted(layer, X[:, :1]), shape=(1,)), X[:, :1]


def string_lookup():
    layer = keras.layers.StringLookup(output_mode="one_hot")
    return dense(adapted(layer, WORDS), shape=(1,), dtype="string"), WORDS


def vocabulary_set_again():
    letters = ["x", "y", "z"]
    layer = keras.layers.StringLookup(vocabulary=letters, output_mode="one_hot")
    layer.set_vocabulary(["red", "green", "blue"])
    return dense(layer, shape=(1,), dtype="string"), WORDS


def nested_lookup():
    inner, x = string_lookup()
    inputs = keras.Input((1,), dtype="string")
    return keras.Model(inputs, keras.layers.Dense(1)(inner(inputs))), x


def integer_lookup():
    layer = keras.layers.IntegerLookup(output_mode="multi_hot")
    adapted(layer, NUMBERS[:3])
    return dense(layer, shape=(1,), dtype="int64"), NUMBERS


def text():
    layer = keras.layers.TextVectorization(output_sequence_length=4)
    adapted(layer, TEXT)
    vectors = keras.layers.Embedding(layer.vocabulary_size(), 3)
    mean = keras.layers.GlobalAveragePooling1D()
    return dense(layer, vectors, mean, shape=(1,), dtype="string"), TEXT


def text_tf_idf():
    layer = keras.layers.TextVectorization(output_mode="tf_idf")
    return dense(adapted(layer, TEXT), shape=(1,), dtype="string"), TEXT


def attributes():
    made = dense(Scaled(), keras.layers.Dense(3))
    made.layers[0].factor = 0.1
    made.layers[0]._shift = np.float32(0.5)
    made.layers[0].own.assign(2.0)
    made.layers[1].activity_regularizer = keras.regularizers.L2(0.1)
    return made, X


def batch_norm():
    norms = [keras.layers.BatchNormalization(momentum=0.5) for _ in range(2)]
    inner = keras.Sequential([keras.Input((4,)), norms[0]])
    return dense(inner, keras.layers.Dense(3), norms[1]), X


def flags():
    made = dense(keras.layers.Dense(3))
    made.layers[0].kernel.trainable = False
    made.layers[1].kernel.regularizer = keras.regularizers.L2(0.1)
    made.layers[1].bias.constraint = keras.constraints.NonNeg()
    return made, X


def own_variables():
    made = dense(Counted())
    made.layers[0].offset.assign(3.0)
    return made, X


def plain():
    return dense(keras.layers.Dense(3, name="inner")), X


def sgd(model):
    return keras.optimizers.SGD(0.02, momentum=0.9)


def exclude_variables(model):
    made = keras.optimizers.AdamW(0.05, weight_decay=0.5)
    made.exclude_from_weight_decay(var_list=[model.layers[0].kernel])
    return made


def exclude_names(model):
    made = keras.optimizers.AdamW(0.05, weight_decay=0.5)
    made.exclude_from_weight_decay(var_names=["bias"])
    return made


def own_attribute(model):
    made = Faster(0.01)
    made.factor = 3.0
    return made


def multi(model):
    chosen = {"inner/.*": keras.optimizers.Adam(0.1)}
    default = keras.optimizers.SGD(0.05)
    return keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(default, chosen)
    )


MODELS = {
    one.__name__: one
    for one in (
        *(normalization, normalization_not_built, discretization),
        *(string_lookup, nested_lookup, integer_lookup, text, text_tf_idf),
        *(attributes, batch_norm, flags, own_variables),
        vocabulary_set_again,
    )
}
OPTIMIZERS = {
    "exclude_variables": exclude_variables,
    "exclude_names": exclude_names,
    "own_attribute": own_attribute,
    "function": lambda model: keras.optimizers.SGD(lambda: 0.07),
    "schedule": lambda model: keras.optimizers.SGD(Unregistered()),
    "apply_gradients": lambda model: Centralized(0.05),
    "lookahead": lambda model: Lookahead(0.05),
    "finalize": lambda model: Doubled(0.05),
    "loss_scale": lambda model: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.05)
    ),
    "use_ema": lambda model: keras.optimizers.Adam(
        0.05, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3
    ),
    "accumulation": lambda model: keras.optimizers.Adam(
        0.05, gradient_accumulation_steps=3
    ),
    "multi": multi,
}
ALL = [*MODELS, *OPTIMIZERS]
# Keras' files hold nothing that was set in place of the configuration's.
IN_FILES = {*ALL} - {"attributes", "vocabulary_set_again"}


def make(case):
    """A model, an optimizer for it, and inputs."""
    keras.utils.set_random_seed(1)
    model, x = MODELS.get(case, plain)()
    return model, OPTIMIZERS.get(case, sgd)(model), x
