"""Image classification from scratch: files on disk, separable convolutions."""

import pathlib
import tempfile

import keras
from keras import layers
from sklearn.datasets import load_digits

from trainer import Trainer

keras.utils.set_random_seed(0)
digits = load_digits()
folder = pathlib.Path(tempfile.mkdtemp())
for i, image in enumerate(digits.images):
    image = (15 * image[..., None]).repeat(3, -1)
    keras.utils.save_img(folder / f"{i:04}.png", image, scale=False)


def files(subset):
    return keras.utils.image_dataset_from_directory(
        folder,
        labels=digits.target.tolist(),
        validation_split=0.2,
        subset=subset,
        # In one order in all epochs.
        shuffle=False,
        image_size=(16, 16),
        batch_size=64,
    )


images = keras.Input((16, 16, 3))
x = layers.Rescaling(1 / 255)(images)
x = layers.Conv2D(16, 3, 2, padding="same", use_bias=False)(x)
x = layers.ReLU()(layers.BatchNormalization()(x))
before = x
for size in (24, 32):
    x = layers.ReLU()(x)
    x = layers.SeparableConv2D(size, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    residual = layers.Conv2D(size, 1, strides=2, padding="same")(before)
    x = before = layers.add([x, residual])
x = layers.GlobalAveragePooling2D()(x)
model = keras.Model(images, layers.Dense(10)(x))
model.compile(
    keras.optimizers.Adam(3e-4),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)
trainer = Trainer(model)
history = trainer.fit(
    files("training"), epochs=2, validation_data=files("validation")
)
print("accuracy", history.history["val_acc"][-1])
