"""From a request to its handler: the dispatcher and its parts."""
