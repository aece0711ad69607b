"""`python -m trainer.new`: writes a small project to begin with.

Nothing here imports TensorFlow.
"""
