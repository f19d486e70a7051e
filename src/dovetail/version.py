"""The version of the package. The build reads it, and handshakes contain it."""

VERSION = "0.1.0"
