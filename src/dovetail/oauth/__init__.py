"""Authorization, both sides, as pure generators and decisions: what is sent and what it means, never the sending."""
