"""The version of the package, read by the build and sent in handshakes."""

VERSION = "0.1.0"
