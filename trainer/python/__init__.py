"""The surface for Python: `fit`, its arguments, history and predictions."""
