"""Many servers, one user: configuration, and, later, supervision, policy and consent."""
