"""What Python needs on top: `fit`, its arguments, history and predictions."""
