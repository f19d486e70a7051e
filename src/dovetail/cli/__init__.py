"""The command line. Each command is one module, imported when it runs."""
