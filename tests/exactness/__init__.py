"""Every loss, metric and optimizer of Keras, against Keras on one device."""
