"""The TLS settings of a server, with clear errors for its certificate and a log line for failed handshakes."""

import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dovetail.log import ThrottledLog, log

_MAX_FILE_BYTES: Final = 1024 * 1024
_http_line: Final = ThrottledLog(logging.INFO)
_handshake_line: Final = ThrottledLog(logging.INFO)


def create_tls_context(certificate: str | Path, key: str | Path | None) -> ssl.SSLContext:
    """Return the TLS settings of a server with this certificate. Raise ValueError if the files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # If the key is encrypted and `password` is missing, Python asks for the password at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except OSError as exc:
        raise ValueError(_describe_problem(certificate, key, exc)) from None
    context.set_alpn_protocols(["http/1.1"])
    context.sslobject_class = _LoggedConnection
    return context


def warn_if_expired(certificate: str | Path) -> None:
    """Log a warning if the certificate is not valid now, because clients will reject it."""
    problem = describe_validity_problem(certificate)
    if problem is not None:
        log.warning("%s", problem)


def describe_validity_problem(certificate: str | Path) -> str | None:
    """Return a sentence if the certificate is not valid now. Otherwise return None."""
    from cryptography import x509  # The import is slow.

    try:
        decoded = x509.load_pem_x509_certificate(_read_start(certificate))
    except ValueError:  # OpenSSL accepts some certificates that cryptography cannot read.
        return None
    now = datetime.now(UTC)
    if now > decoded.not_valid_after_utc:
        return f"the certificate {certificate} expired on {decoded.not_valid_after_utc}. Clients reject it"
    if now < decoded.not_valid_before_utc:
        return f"the certificate {certificate} is not valid before {decoded.not_valid_before_utc}. Clients reject it"
    return None


def _describe_problem(certificate: str | Path, key: str | Path | None, error: OSError) -> str:
    files = certificate if key is None else f"{certificate} with the key {key}"
    problem = error.strerror or error
    if not isinstance(error, ssl.SSLError):
        return f"cannot read the certificate {files}: {problem}"
    if key is None and b"PRIVATE KEY-----" not in _read_start(certificate):
        return f"the certificate {certificate} contains no private key. Pass the file of the key as ssl_keyfile"
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the private key {key or certificate} does not belong to the certificate {certificate}"
    return f"cannot use the certificate {files}: {problem}. Both must be PEM files, and the key must have no password"


def _read_start(path: str | Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MAX_FILE_BYTES)


class _LoggedConnection(ssl.SSLObject):
    """A TLS connection that logs a failed handshake. The event loop does not report it."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as exc:
            if exc.reason == "HTTP_REQUEST":
                _http_line.log("rejected a client that sent HTTP to a port with TLS. Use https:// in its URL")
            else:
                _handshake_line.log("a TLS handshake failed: %s", exc.reason or exc)
            raise
