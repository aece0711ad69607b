"""What the strategies are compared with: plain formulas on one device.

Nothing here is imported from the framework. The regression step is written
in float64 from its equations; the rest is NumPy.
"""

import numpy as np
import tensorflow as tf

from . import models

_BN_EPSILON, _BN_MOMENTUM = 1e-3, 0.99
_BETA1, _BETA2, _ADAM_EPSILON = 0.9, 0.999, 1e-7


def epoch_batches(size: int, batch: int) -> list[np.ndarray]:
    return [np.arange(i, min(i + batch, size)) for i in range(0, size, batch)]


def micro_batches(batch: np.ndarray, micro: int) -> list[np.ndarray]:
    """Even, contiguous shares of a batch, the larger ones first."""
    return np.array_split(batch, micro)


def train_regression(initial, *, steps, micro, ema=None):
    """Trains the regression model by its equations.

    Args:
        initial: kernel, bias, gamma, beta, moving mean, moving variance,
            kernel, bias.
        steps: optimizer steps.
        micro: micro-batches in a batch.
        ema: momentum of the weights' average.

    Returns:
        A dict of the final variables, the loss of each step, the mean
        absolute error over all steps (weighted), and the averages.
    """
    x, y, weight = (a.astype("float64") for a in models.regression_data())
    kernel, bias, gamma, beta, mean, variance, kernel2, bias2 = (
        tf.Variable(a, dtype=tf.float64) for a in initial
    )
    trained = [kernel, bias, gamma, beta, kernel2, bias2]
    moments = [[np.zeros(v.shape), np.zeros(v.shape)] for v in trained]
    averages = [v.numpy() for v in trained]
    batches = epoch_batches(len(x), models.BATCH)
    losses, error, error_weight = [], 0.0, 0.0
    for step in range(steps):
        batch = batches[step % len(batches)]
        gradients = [np.zeros(v.shape) for v in trained]
        loss = 0.0
        for part in micro_batches(batch, micro):
            with tf.GradientTape() as tape:
                hidden = tf.tanh(x[part] @ kernel + bias)
                m = tf.reduce_mean(hidden, 0)
                v = tf.reduce_mean((hidden - m) ** 2, 0)
                scaled = (hidden - m) / tf.sqrt(v + _BN_EPSILON)
                out = (scaled * gamma + beta) @ kernel2 + bias2
                squared = (out - y[part])[:, 0] ** 2
                part_loss = tf.reduce_sum(weight[part] * squared) / len(batch)
            for i, g in enumerate(tape.gradient(part_loss, trained)):
                gradients[i] += g.numpy()
            mean.assign(_BN_MOMENTUM * mean + (1 - _BN_MOMENTUM) * m)
            variance.assign(_BN_MOMENTUM * variance + (1 - _BN_MOMENTUM) * v)
            loss += part_loss.numpy()
            absolute = np.abs((out - y[part])[:, 0])
            error += np.sum(weight[part] * absolute)
            error_weight += np.sum(weight[part])
        losses.append(loss + models.L2 * np.sum(kernel.numpy() ** 2))
        gradients[0] += 2 * models.L2 * kernel.numpy()
        _clip_and_apply_adam(trained, gradients, moments, step + 1)
        if ema is not None:
            averages = [
                ema * a + (1 - ema) * v.numpy()
                for a, v in zip(averages, trained, strict=True)
            ]
    final = [kernel, bias, gamma, beta, mean, variance, kernel2, bias2]
    return {
        "final": [v.numpy() for v in final],
        "losses": np.array(losses),
        "error": error / error_weight,
        "averages": averages,
    }


def _clip_and_apply_adam(variables, gradients, moments, t):
    norm = np.sqrt(sum(np.sum(g**2) for g in gradients))
    factor = min(1.0, models.CLIP_NORM / norm)
    rate = models.LEARNING_RATE * np.sqrt(1 - _BETA2**t) / (1 - _BETA1**t)
    for v, g, moment in zip(variables, gradients, moments, strict=True):
        g = g * factor
        moment[0] += (g - moment[0]) * (1 - _BETA1)
        moment[1] += (g**2 - moment[1]) * (1 - _BETA2)
        v.assign_sub(rate * moment[0] / (np.sqrt(moment[1]) + _ADAM_EPSILON))


def evaluate_regression(variables):
    """Loss and mean absolute error over all examples, with fixed moments."""
    x, y, weight = (a.astype("float64") for a in models.regression_data())
    kernel, bias, gamma, beta, mean, variance, kernel2, bias2 = variables
    hidden = np.tanh(x @ kernel + bias)
    scaled = (hidden - mean) / np.sqrt(variance + _BN_EPSILON)
    out = (scaled * gamma + beta) @ kernel2 + bias2
    error = (out - y)[:, 0]
    penalty = models.L2 * np.sum(kernel**2)
    loss = np.sum(weight * error**2) / len(x) + penalty
    return loss, np.sum(weight * np.abs(error)) / np.sum(weight)


def train_tokens(embedding, kernel, bias, *, steps, rate):
    """Plain gradient descent on masked cross-entropy, divided by the mask."""
    tokens, labels = models.token_data()
    variables = [
        tf.Variable(a, dtype=tf.float64) for a in (embedding, kernel, bias)
    ]
    batches = epoch_batches(len(tokens), models.BATCH)
    total, count = 0.0, 0.0
    for step in range(steps):
        part = batches[step % len(batches)]
        mask = (tokens[part] != 0).astype("float64")
        with tf.GradientTape() as tape:
            embedded = tf.gather(variables[0], tokens[part])
            logits = embedded @ variables[1] + variables[2]
            values = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels[part], logits
            )
            summed = tf.reduce_sum(values * mask)
            loss = summed / mask.sum()
        gradients = tape.gradient(loss, variables)
        for v, g in zip(variables, gradients, strict=True):
            v.assign_sub(rate * tf.convert_to_tensor(g))
        total, count = total + summed.numpy(), count + mask.sum()
    return [v.numpy() for v in variables], total / count


def weighted_auc(labels, scores, weights):
    """The area under the ROC curve: P(positive scores above negative)."""
    labels = labels.ravel() > 0
    scores = scores.ravel()
    positive, negative = scores[labels], scores[~labels]
    pairs = np.outer(weights[labels], weights[~labels])
    above = (positive[:, None] > negative[None, :]) + 0.5 * (
        positive[:, None] == negative[None, :]
    )
    return np.sum(pairs * above) / np.sum(pairs)


def train_views(kernel, bias):
    """Gradient descent on NT-Xent, equation 1 of Chen et al. (2020).

    Returns:
        The weights, the mean loss of all steps and that of an evaluation.
    """
    x = models.views_data().astype("float64")
    variables = [tf.Variable(a, dtype=tf.float64) for a in (kernel, bias)]
    batches = epoch_batches(len(x), models.VIEWS_BATCH)

    def loss_of(batch):
        views = x[batch] @ variables[0] + variables[1]
        both = tf.reshape(tf.transpose(views, [1, 0, 2]), [-1, 3])
        alike = both @ tf.transpose(both) / models.VIEWS_TEMPERATURE
        size, total = len(batch), 0.0
        for i in range(2 * size):
            others = [k for k in range(2 * size) if k != i]
            partner = (i + size) % (2 * size)
            total += tf.reduce_logsumexp(tf.gather(alike[i], others))
            total -= alike[i, partner]
        return total / (2 * size)

    losses, sizes = [], [len(batch) for batch in batches]
    for step in range(models.VIEWS_STEPS):
        with tf.GradientTape() as tape:
            loss = loss_of(batches[step % len(batches)])
        losses.append(float(loss))
        for v, g in zip(variables, tape.gradient(loss, variables), strict=True):
            v.assign_sub(models.VIEWS_RATE * g)
    counts = [sizes[step % len(sizes)] for step in range(models.VIEWS_STEPS)]
    return (
        [v.numpy() for v in variables],
        np.average(losses, weights=counts),
        np.average([float(loss_of(b)) for b in batches], weights=sizes),
    )
