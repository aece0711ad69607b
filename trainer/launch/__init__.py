"""The parts of `trainer.launch`, which starts tasks, again and again."""
