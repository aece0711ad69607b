"""The gin file of an experiment of a few lines."""

IMPORT = "import cli_tiny_experiment\n"
TINY = f"""{IMPORT}\
Trainer.model = @linear
Trainer.loss = @losses.MeanSquaredError()
Trainer.optimizer = @SGD
Trainer.data = @sums
Trainer.batch_size = 16
run.strategy = 'one_device'
run.train_steps = 8
run.steps_per_loop = 4
"""
