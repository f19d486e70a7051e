"""The interfaces between the core and what implements or extends it."""
