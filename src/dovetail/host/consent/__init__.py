"""Ask the user of a host for consent, and store the answers."""
