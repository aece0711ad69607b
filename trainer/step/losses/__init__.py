"""The loss over the global batch, term by term."""
