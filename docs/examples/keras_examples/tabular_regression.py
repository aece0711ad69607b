"""Tabular data from a `PyDataset`: the course of diabetes after a year."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_diabetes

keras.utils.set_random_seed(0)
x, y = load_diabetes(return_X_y=True)
x, y = (20 * x).astype("float32"), (y / 100).astype("float32")


class Table(keras.utils.PyDataset):
    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def __len__(self):
        return -(-len(self.rows) // 32)

    def __getitem__(self, number):
        rows = self.rows[32 * number : 32 * (number + 1)]
        # Rows of patients with a high pressure count twice.
        return x[rows], y[rows, None], np.where(x[rows, 3] > 0, 2.0, 1.0)


model = keras.Sequential(
    [
        keras.Input((10,)),
        layers.Dense(32, activation="gelu", kernel_regularizer="l2"),
        layers.Dense(1),
    ]
)
schedule = keras.optimizers.schedules.CosineDecay(0.01, 60)
model.compile(
    optimizer=keras.optimizers.AdamW(schedule, clipnorm=1.0),
    loss=keras.losses.Huber(),
    weighted_metrics=["mae"],
)
history = model.fit(
    Table(np.arange(320)),
    epochs=6,
    shuffle=False,
    validation_data=Table(np.arange(320, 442)),
)
print("error", history.history["val_mae"][-1])
