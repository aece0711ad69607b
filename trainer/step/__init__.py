"""The mathematics of one step, independent of the strategy."""
