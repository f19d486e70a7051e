"""The command line: every command one module, loaded when it is used."""
