"""The needs of a Keras model and its variables to run on replicas."""
