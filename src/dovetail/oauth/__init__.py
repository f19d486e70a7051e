"""OAuth for clients and servers. The flows of this package decide which request to send and how to handle the response.

They do not send requests themselves.
"""
