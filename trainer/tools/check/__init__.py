"""`--mode=check`, which the core finds as an entry point of `trainer.modes`."""
