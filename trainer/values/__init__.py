"""The values that parameters of configurables may have."""
