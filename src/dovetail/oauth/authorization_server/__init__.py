"""An authorization server for development and small installations. Its flows convert a request to a response."""
