"""Write and play recordings of traffic."""
