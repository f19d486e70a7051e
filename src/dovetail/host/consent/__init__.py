"""Questions to the user, and the stored answers."""
