"""The tasks extension: calls that continue in the background and survive a restart."""
