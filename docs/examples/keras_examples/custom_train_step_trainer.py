"""What happens in `fit`, customized: a training step of one's own.

Each step trains on examples that are moved against the network (adversarial
training by the fast gradient method).
"""

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

from trainer import Trainer, average

keras.utils.set_random_seed(0)
pixels, y = load_digits(return_X_y=True)
x, y = (pixels[:1792] / 16).astype("float32"), y[:1792]


class Adversarial(Trainer):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = self.per_example_loss(x, y, self.model(x, training=True))
        moved = x + 0.5 * tf.math.l2_normalize(tape.gradient(loss, x), 1)
        with tf.GradientTape() as tape:
            y_pred = self.model(moved, training=True)
            losses = self.per_example_loss(moved, y, y_pred)
            loss = average(tf.reduce_sum(losses), tf.size(losses))
        variables = self.model.trainable_variables
        self.apply_gradients(self.gradients(tape, loss, variables))
        return {"loss": loss} | self.metric_increments(y, y_pred)


images = keras.Input((64,))
hidden = layers.Dense(64, activation="relu")(images)
logits = layers.Dense(10)(hidden)
model = keras.Model(images, logits)
model.compile(
    optimizer=keras.optimizers.Adam(0.005),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy("accuracy")],
)
trainer = Adversarial(model)
history = trainer.fit(x, y, batch_size=64, epochs=4, shuffle=False)
print("accuracy", trainer.evaluate(x, y)["accuracy"])
