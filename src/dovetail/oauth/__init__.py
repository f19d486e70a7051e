"""OAuth for clients and servers as pure flows. They decide what to send and what a response means, and send nothing."""
