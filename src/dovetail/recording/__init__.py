"""Write recordings of traffic, and play them back."""
