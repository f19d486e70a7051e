"""Run servers as child processes."""
