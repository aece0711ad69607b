"""Time series: a recurrent network reads digits row by row.

Stops early, lowers the learning rate on a plateau, and keeps the best weights.
"""

import keras
from keras import layers
from sklearn.datasets import load_digits

from trainer import Trainer

keras.utils.set_random_seed(0)
digits = load_digits()
# Eight steps of eight values.
x, y = (digits.images / 16).astype("float32"), digits.target

model = keras.Sequential(
    [
        keras.Input((8, 8)),
        layers.Conv1D(32, 3, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.GRU(32),
        layers.Dense(10, activation="softmax"),
    ]
)
callbacks = [
    keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_lr=1e-4),
    keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
]
model.compile(
    optimizer=keras.optimizers.Adam(0.01, epsilon=1e-4),
    loss="sparse_categorical_crossentropy",
    metrics=["sparse_categorical_accuracy"],
)
trainer = Trainer(model)
history = trainer.fit(
    x[:1400],
    y[:1400],
    batch_size=56,
    epochs=6,
    shuffle=False,
    callbacks=callbacks,
    validation_data=(x[1400:], y[1400:]),
)
print("loss", trainer.evaluate(x[1400:], y[1400:])["loss"])
