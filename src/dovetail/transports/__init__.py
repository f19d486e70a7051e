"""Transports move messages. They use exchanges and the protocol, but neither servers nor clients."""
