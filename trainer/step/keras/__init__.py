"""What a Keras model and its variables need in order to run on replicas."""
