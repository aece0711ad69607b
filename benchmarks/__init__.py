"""What training costs here, and what it costs with others.

`python -m benchmarks` runs all of it; see docs/about/benchmarks.md.
"""
