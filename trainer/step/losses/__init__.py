"""Losses: sums with a global denominator, term by term."""
