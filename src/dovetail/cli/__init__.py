"""The command line. Each command is one module, which is imported only when the command runs."""
