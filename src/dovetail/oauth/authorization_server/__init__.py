"""An authorization server for development and small installations, as pure flows from a request to a response."""
