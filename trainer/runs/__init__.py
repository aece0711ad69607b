"""`python -m trainer.runs`: compares the runs below a folder.

It only reads, and nothing here imports TensorFlow.
"""
