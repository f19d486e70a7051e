"""Version of the package. The build reads it, and the handshake with a peer contains it."""

VERSION = "0.1.0"
