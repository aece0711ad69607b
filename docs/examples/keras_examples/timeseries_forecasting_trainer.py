"""Forecasting: windows of several series, an LSTM, and the best checkpoint."""

import tempfile

import keras
import numpy as np
from keras import layers

from trainer import Trainer

keras.utils.set_random_seed(0)
hours = np.arange(3000)
rng = np.random.default_rng(0)
series = np.stack([np.sin(hours / p) for p in (4, 15, 40)], 1)
series = (series + 0.1 * rng.normal(size=series.shape)).astype("float32")
past, future = 48, 6


def windows(begin, end):
    return keras.utils.timeseries_dataset_from_array(
        series[begin : end - past - future],
        series[begin + past + future : end, :1],
        sequence_length=past,
        sampling_rate=4,
        batch_size=64,
    )


inputs = keras.Input((past // 4, 3))
output = layers.Dense(1)(layers.LSTM(32)(inputs))
model = keras.Model(inputs, output)
model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
path = f"{tempfile.mkdtemp()}/best.weights.h5"
trainer = Trainer(model)
history = trainer.fit(
    windows(0, 2400),
    epochs=4,
    validation_data=windows(2400, 3000),
    callbacks=[
        keras.callbacks.EarlyStopping(patience=5),
        keras.callbacks.ModelCheckpoint(
            path, save_best_only=True, save_weights_only=True
        ),
    ],
)
model.load_weights(path)
print("error", trainer.evaluate(windows(2400, 3000))["mae"])
