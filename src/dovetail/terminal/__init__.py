"""Print text and tables on a terminal, and ask the user."""
