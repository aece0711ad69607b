"""Time series with a transformer of Keras' own layers."""

import keras
from keras import layers
from sklearn.datasets import load_digits

from trainer import Trainer

keras.utils.set_random_seed(0)
digits = load_digits()
# Eight steps of eight values.
x, y = (digits.images / 16).astype("float32"), digits.target


def encoder(x, heads, size, inner):
    attention = layers.MultiHeadAttention(heads, size, use_bias=False)
    attended = attention(x, x)
    x = layers.LayerNormalization(epsilon=1e-6)(attended) + x
    h = layers.Conv1D(inner, 1, activation="relu")(x)
    h = layers.Conv1D(x.shape[-1], 1)(h)
    return layers.LayerNormalization(epsilon=1e-6)(h) + x


inputs = keras.Input((8, 8))
h = inputs
for _ in range(2):
    h = encoder(h, heads=2, size=16, inner=16)
h = layers.GlobalAveragePooling1D(data_format="channels_last")(h)
h = layers.Dense(32, activation="relu")(h)
model = keras.Model(inputs, layers.Dense(10, activation="softmax")(h))
model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=keras.optimizers.Adam(1e-3),
    metrics=["sparse_categorical_accuracy"],
)
trainer = Trainer(model)
history = trainer.fit(
    x,
    y,
    validation_split=0.2,
    epochs=4,
    batch_size=64,
    shuffle=False,
    callbacks=[
        keras.callbacks.EarlyStopping(patience=10, restore_best_weights=True)
    ],
)
print("loss", history.history["val_loss"][-1])
