"""Distillation: a small student learns a large teacher's probabilities."""

import keras
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
pixels, y = load_digits(return_X_y=True)
x = (pixels / 16).astype("float32").reshape(-1, 8, 8, 1)


def network(filters, name):
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(filters, 3, 2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Conv2D(2 * filters, 3, 2, padding="same"),
            layers.Flatten(),
            layers.Dense(10),
        ],
        name=name,
    )


teacher, student = network(32, "teacher"), network(4, "student")
crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
teacher.compile("adam", crossentropy)
teacher.fit(x, y, epochs=4, shuffle=False)


class Distiller(keras.Model):
    def __init__(self, student, teacher, alpha=0.1, temperature=3.0):
        super().__init__()
        self.student, self.teacher = student, teacher
        self.teacher.trainable = False
        self.alpha, self.temperature = alpha, temperature

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        soft = ops.softmax(self.teacher(x, training=False) / self.temperature)
        divergence = keras.losses.KLDivergence()(
            soft, ops.softmax(y_pred / self.temperature)
        )
        loss = crossentropy(y, y_pred)
        distilled = divergence * self.temperature**2
        return self.alpha * loss + (1 - self.alpha) * distilled

    def call(self, x, training=None):
        return self.student(x, training=training)


model = Distiller(student, teacher)
model.compile("adam", metrics=["sparse_categorical_accuracy"])
history = model.fit(x, y, epochs=4, shuffle=False)
print("accuracy", history.history["sparse_categorical_accuracy"][-1])
