"""The pipes: bytes in and out. They know exchanges and the rules, neither servers nor clients."""
