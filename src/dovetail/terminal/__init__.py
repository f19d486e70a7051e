"""Text, tables and questions on a terminal."""
