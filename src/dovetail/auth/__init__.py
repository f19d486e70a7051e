"""The joint between authorization and the web: drives the flows of `auth` over the HTTP client, for `connect`."""
