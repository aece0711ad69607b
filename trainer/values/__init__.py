"""What values the parameters of configurables may have."""
