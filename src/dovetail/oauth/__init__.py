"""OAuth for clients and servers as pure flows. A flow decides which request to send and what the response means, but
sends nothing itself.
"""
