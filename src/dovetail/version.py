"""The version of this package: the one place it is written, read by the build and sent in handshakes."""

VERSION = "0.1.0"
