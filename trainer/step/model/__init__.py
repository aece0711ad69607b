"""What a Keras model and its variables need under a strategy."""
