"""Image classification: a small convolutional network on handwritten digits."""

import keras
from keras import layers
from sklearn.datasets import load_digits

from trainer import Trainer

keras.utils.set_random_seed(0)
pixels, labels = load_digits(return_X_y=True)
x = (pixels / 16).astype("float32").reshape(-1, 8, 8, 1)
y = keras.utils.to_categorical(labels, 10)

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(32, activation="relu"),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
trainer = Trainer(model)
history = trainer.fit(
    x, y, batch_size=64, epochs=5, validation_split=0.2, shuffle=False
)
score = trainer.evaluate(x[-300:], y[-300:])
print("accuracy", score["accuracy"])
