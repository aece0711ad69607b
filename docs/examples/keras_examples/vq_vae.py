"""A vector-quantized autoencoder: the codebook's losses are added by a layer.

The gradient goes straight through the quantization.
"""

import keras
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
pixels, _ = load_digits(return_X_y=True)
x = (pixels / 16).astype("float32").reshape(-1, 8, 8, 1)[:1792]


class VectorQuantizer(layers.Layer):
    def __init__(self, count, size, beta=0.25, **options):
        super().__init__(**options)
        self.count, self.size, self.beta = count, size, beta

    def build(self, shape):
        self.codes = self.add_weight(
            shape=(self.size, self.count),
            initializer=keras.initializers.RandomUniform(),
            name="codes",
        )

    def call(self, inputs):
        flat = ops.reshape(inputs, [-1, self.size])
        distances = (
            ops.sum(flat**2, 1, keepdims=True)
            + ops.sum(self.codes**2, 0)
            - 2 * ops.matmul(flat, self.codes)
        )
        one_hot = ops.one_hot(ops.argmin(distances, 1), self.count)
        quantized = ops.matmul(one_hot, ops.transpose(self.codes))
        quantized = ops.reshape(quantized, ops.shape(inputs))
        commitment = (ops.stop_gradient(quantized) - inputs) ** 2
        codebook = (quantized - ops.stop_gradient(inputs)) ** 2
        self.add_loss(self.beta * ops.mean(commitment) + ops.mean(codebook))
        return inputs + ops.stop_gradient(quantized - inputs)

    def get_config(self):
        sizes = {"count": self.count, "size": self.size, "beta": self.beta}
        return super().get_config() | sizes


images = keras.Input((8, 8, 1))
h = layers.Conv2D(16, 3, 2, padding="same", activation="relu")(images)
h = layers.Conv2D(8, 1)(h)
h = VectorQuantizer(32, 8)(h)
h = layers.Conv2DTranspose(16, 3, 2, padding="same", activation="relu")(h)
output = layers.Conv2DTranspose(1, 3, padding="same")(h)
model = keras.Model(images, output)
model.compile(keras.optimizers.Adam(0.002), "mse")
history = model.fit(x, x, batch_size=64, epochs=4, shuffle=False)
print("loss", history.history["loss"][-1])
