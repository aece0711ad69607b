"""Commands beside `python -m trainer`; nothing else here imports them."""
