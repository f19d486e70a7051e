"""Test the certificate of a server, and the log lines about TLS."""

import asyncio
import errno
import logging
import os
import ssl
from pathlib import Path

import pytest

from dovetail.log import ThrottledLog
from dovetail.protocol.limits import ServerLimits
from dovetail.transports.http1 import tls_context
from dovetail.transports.http1.http_listener import HTTPServer, bind_socket
from dovetail.transports.http1.tls_context import create_tls_context, warn_if_expired
from support.certificates import write_certificate


def test_a_certificate_without_its_key_names_the_option(tmp_path: Path) -> None:
    certificate, _ = write_certificate(tmp_path)
    with pytest.raises(ValueError, match="ssl_keyfile") as caught:
        create_tls_context(certificate, None)
    assert str(certificate) in str(caught.value)


def test_a_wrong_key_is_named_with_its_certificate(tmp_path: Path) -> None:
    certificate, _ = write_certificate(tmp_path)
    (tmp_path / "other").mkdir()
    _, key = write_certificate(tmp_path / "other")
    with pytest.raises(ValueError, match="does not belong") as caught:
        create_tls_context(certificate, key)
    assert str(caught.value) == f"the private key {key} does not belong to the certificate {certificate}"


def test_a_file_that_is_no_certificate_is_named_with_the_format(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    certificate.write_text("not PEM", encoding="utf-8")
    with pytest.raises(ValueError, match=r"cannot use the certificate .* Both must be PEM files") as caught:
        create_tls_context(certificate, key)
    assert str(certificate) in str(caught.value)


def test_a_file_with_both_is_enough(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    certificate.write_bytes(certificate.read_bytes() + key.read_bytes())
    create_tls_context(certificate, None)


@pytest.mark.parametrize("has_key", [False, True])
@pytest.mark.parametrize("code", [errno.ENOENT, errno.EACCES])
def test_a_file_that_cannot_be_read_is_named_with_the_problem(
    has_key: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_cert_chain(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    if code == errno.EACCES:  # The administrator can read all files.
        monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load_cert_chain)
    with pytest.raises(ValueError, match=f"{os.strerror(code)}$") as caught:
        create_tls_context(certificate, key if has_key else None)
    assert str(certificate) in str(caught.value)
    assert (str(key) in str(caught.value)) is has_key


@pytest.mark.parametrize(("hours", "count"), [(1, 0), (-1, 1)])
def test_an_expired_certificate_is_logged(
    hours: int, count: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, _ = write_certificate(tmp_path, hours=hours)
    warn_if_expired(certificate)
    assert len(caplog.records) == count


@pytest.mark.parametrize("data", [b"GET /mcp HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\x00" * 100])
async def test_a_failed_handshake_is_logged(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dovetail")
    for name in ("_http_line", "_handshake_line"):
        monkeypatch.setattr(tls_context, name, ThrottledLog(logging.INFO))

    async def application(scope: object, receive: object, send: object) -> None:
        raise NotImplementedError

    async def close() -> None:
        pass

    listener = bind_socket("127.0.0.1", 0)
    server = HTTPServer(application, ServerLimits(), create_tls_context(*write_certificate(tmp_path)))
    await server.start(listener)
    try:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(data)
        async with asyncio.timeout(10):
            await reader.read()
        writer.close()
    finally:
        await server.stop(close)
    assert [record.levelno for record in caplog.records if record.name == "dovetail"] == [logging.INFO]
