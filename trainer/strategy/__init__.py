"""The base class of strategy plugins, and what finds them."""
