"""An authorization server for development and small installations, as pure flows: a request in, a response out."""
