"""Commands besides `python -m trainer`; nothing else here imports them."""
