"""Keras' own tests, with a Trainer in place of `fit` and `evaluate`.

    python -m tests.keras_own trainers/trainer_test.py -k sparse

runs a file that Keras' package ships, with options of pytest. `failing.toml`
has the tests that fail on purpose, with the reason.
"""
