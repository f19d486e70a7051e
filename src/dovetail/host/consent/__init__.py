"""The user's answers, and what is remembered of them."""
