"""The responses of the HTTP endpoint, and the event log from which clients resume them."""
