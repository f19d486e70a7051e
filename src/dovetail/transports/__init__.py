"""Transports move messages. They know exchanges and the protocol, but neither servers nor clients."""
