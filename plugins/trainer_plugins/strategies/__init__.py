"""A plugin for each strategy of tf.distribute."""
