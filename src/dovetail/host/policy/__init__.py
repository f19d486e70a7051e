"""Rules about what may happen, and their limits."""
