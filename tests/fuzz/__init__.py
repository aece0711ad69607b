"""Hundreds of wrong command lines, files and variables against real runs.

Each case says by itself whether it is nonsense, sense, or either. See
`test_fuzz.py` for what must be so in each case.
"""
