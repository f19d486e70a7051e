"""The clients of the authorization server: configured, registered, or described by a document at a URL.

spec: client-registration
"""

import contextlib
from urllib.parse import urlsplit

from dovetail.oauth.authorization_server import clients
from dovetail.oauth.authorization_server.client_authentication import OAuthError
from dovetail.oauth.authorization_server.clients import InvalidClient
from dovetail.oauth.authorization_server.limiters import StoreLimiter
from dovetail.oauth.authorization_server.responses import Request, error_response, json_response, rate_limit_response
from dovetail.oauth.authorization_server.settings import AuthorizationServerSettings
from dovetail.oauth.authorization_server.store import (
    AuthorizationStore,
    ClientRecord,
    StoreFull,
    add_stored_value,
    decode_record,
    encode_record,
)
from dovetail.oauth.flow import FetchUntrusted, Flow, Now, wait_for
from dovetail.protocol.interfaces.http_types import HTTPResponse
from dovetail.protocol.rate_limiter import RateLimiter


class ClientDirectory:
    """Finds the clients of the authorization server, and registers new ones."""

    def __init__(self, settings: AuthorizationServerSettings, store: AuthorizationStore) -> None:
        self._settings = settings
        self._store = store
        self._known_clients = {client.client_id: client for client in settings.clients}
        self._registration_limiter = StoreLimiter(store, "registrations", settings.max_registrations_per_hour, 3600.0)
        self._warning_limiter = RateLimiter(1, 3600.0)
        self._fetch_limiter = RateLimiter(settings.max_fetches_per_minute, 60.0)

    def register(self, request: Request) -> Flow[HTTPResponse]:
        """Register a client that sent its metadata. spec: client-registration#dynamic-client-registration"""
        now: float = yield Now()
        if wait_s := (yield from self._registration_limiter.compute_wait(request.address, now)):
            self._warn_registration_limit(request.address, now)
            return rate_limit_response(
                wait_s,
                f"this address may register {self._settings.max_registrations_per_hour} clients per hour",
            )
        client_metadata = request.json()
        if client_metadata is None:
            return error_response("invalid_client_metadata", "the body must be a JSON object")
        yield from self._registration_limiter.take(request.address, now)
        try:
            client, secret = clients.create_client(client_metadata)
        except InvalidClient as exc:
            return error_response(exc.error, str(exc))
        until = now + clients.UNUSED_CLIENT_TTL_S
        yield from wait_for(self._store.put("client", client.client_id, encode_record(client), until, now))
        return json_response(clients.build_registration_response(client, secret, now, client_metadata), 201)

    def _warn_registration_limit(self, address: str, now: float) -> None:
        if self._settings.warn is not None and not self._warning_limiter.take(address, now):
            self._settings.warn(
                f"{address or 'an unknown address'} reached the limit of "
                f"{self._settings.max_registrations_per_hour} client registrations per hour. Set "
                "max_registrations_per_hour= to change the limit"
            )

    def find(self, client_id: str | None, address: str, now: float) -> Flow[ClientRecord]:
        """Return the client with this ID. Raise InvalidClient if the client is unknown.

        The server fetches only a limited number of client documents for each address.
        """
        if client_id is None:
            raise InvalidClient("client_id is missing", "invalid_request")
        if client_id in self._known_clients:
            return self._known_clients[client_id]
        is_document_client = clients.is_document_url(client_id)
        record_kind = "client document" if is_document_client else "client"
        stored_value = yield from wait_for(self._store.get(record_kind, client_id, now))
        stored_client = decode_record(stored_value, ClientRecord)
        if stored_client is not None:
            return stored_client if is_document_client else add_stored_value(stored_client, stored_value)
        if not is_document_client:
            raise InvalidClient("unknown client", "invalid_client")
        host, is_trusted = urlsplit(client_id).hostname or "", self._settings.is_trusted_client
        if is_trusted is not None and not is_trusted(host):
            raise InvalidClient(
                "this server does not accept clients whose metadata document is on this host", "invalid_client"
            )
        self.check_fetch_limit(address, now)
        response = yield FetchUntrusted(client_id)
        client = clients.parse_client_document(client_id, response)
        # If the store is full, the document is not stored. The next request then fetches the document again.
        with contextlib.suppress(StoreFull):
            until = now + clients.get_document_ttl(response.headers)
            yield from wait_for(self._store.put(record_kind, client_id, encode_record(client), until, now))
        return client

    def check_fetch_limit(self, address: str, now: float) -> None:
        """Raise OAuthError if this address caused too many fetches."""
        if wait_s := self._fetch_limiter.take(address, now):
            raise OAuthError(rate_limit_response(wait_s))
