"""Published advisories about authorization in MCP software, and the tests of ours that would have caught each.

A test is `path::function`, its path below `tests`.
"""

from typing import NamedTuple


class Advisory(NamedTuple):
    """One flaw somebody had, or several of one kind."""

    names: str
    where: str
    flaw: str
    tests: tuple[str, ...]


ADVISORIES = (
    # OAuth
    Advisory(
        "GHSA-c2jp-c369-7pvx",
        "fastmcp",
        "a proxy to a provider does not ask for consent for each client",
        (
            "oauth/test_identity_provider.py::test_no_user_is_sent_upstream_before_consent",
            "oauth/test_identity_provider.py::test_each_client_is_agreed_to_by_itself",
            "reliability/test_confused_deputy.py::test_no_attack_succeeds",
        ),
    ),
    Advisory(
        "CVE-2026-27124, GHSA-rww4-4w9c-7733",
        "fastmcp",
        "consent is not bound to the browser that returns",
        (
            "oauth/test_identity_provider.py::test_a_callback_in_another_browser",
            "oauth/test_authorization_server.py::test_another_browser_cannot_decide",
            "reliability/test_confused_deputy.py::test_no_attack_succeeds",
        ),
    ),
    Advisory(
        "GHSA-6x8h-498w-gv8c",
        "fastmcp",
        "a request of another client uses remembered consent",
        (
            "oauth/test_authorization_server.py::test_consent_is_asked_for_every_time",
            "reliability/test_confused_deputy.py::test_no_attack_succeeds",
        ),
    ),
    Advisory(
        "CVE-2025-69196",
        "fastmcp",
        "a token for the origin instead of the requested resource",
        (
            "oauth/test_authorization_server.py::test_from_consent_to_token",
            "reliability/test_token_validation.py::test_no_flawed_token_is_let_through",
        ),
    ),
    Advisory(
        "CVE-2025-62800",
        "fastmcp",
        "the callback page of the client shows text from its URL",
        (
            "auth/test_loopback_listener.py::test_nothing_that_came_is_shown",
            "auth/test_browser_login.py::test_a_refused_login_is_reported_and_its_error_text_is_not_executed",
        ),
    ),
    Advisory(
        "CVE-2025-4143",
        "workers-oauth-provider",
        "`redirect_uri` is not checked",
        (
            "oauth/test_authorization_server.py::test_a_redirect_to_an_unknown_place_is_never_followed",
            "oauth/test_authorization_server.py::test_a_redirect_outside_the_document",
        ),
    ),
    Advisory(
        "CVE-2025-4144",
        "workers-oauth-provider",
        "PKCE can be omitted",
        (
            "oauth/test_authorization_server.py::test_errors_that_are_sent_to_the_client",
            "oauth/test_authorization_server.py::test_a_code_in_wrong_hands",
        ),
    ),
    Advisory(
        "CVE-2025-6514",
        "mcp-remote",
        "the authorization endpoint is passed to a shell",
        ("reliability/test_discovery_ssrf.py::test_an_address_is_never_given_to_a_shell",),
    ),
    Advisory(
        "CVE-2025-58444, GHSA-g9hg-qhmf-q45m",
        "Inspector",
        "a `javascript:` URL is opened to log in",
        ("reliability/test_discovery_ssrf.py::test_a_url_that_is_not_a_page_is_not_opened",),
    ),
    Advisory(
        "CVE-2026-58196, CVE-2026-44430, vercel/ai 20578, Inspector 1717",
        "ToolHive, registry, AI SDK, Inspector",
        "discovery reaches the local network. 6to4, NAT64 and site-local addresses are not detected",
        (
            "reliability/test_discovery_ssrf.py::test_no_document_leads_into_this_network",
            "reliability/test_discovery_ssrf.py::test_a_name_that_changes_its_address_gains_nothing",
            "auth/test_safe_fetch.py::test_addresses_that_are_not",
            "auth/test_authorization_server_app.py::test_documents_of_strangers_are_not_fetched_from_this_network",
        ),
    ),
    Advisory(
        "librefang 6315",
        "several clients",
        "a form with credentials follows a 307 or 308 redirect",
        (
            "reliability/test_discovery_ssrf.py::test_a_code_is_not_sent_on",
            "auth/test_authorizer.py::test_credentials_are_not_redirected",
        ),
    ),
    Advisory(
        "CVE-2026-44427",
        "registry",
        "an open redirect with `//`",
        (
            "oauth/test_authorization_server.py::test_a_redirect_to_an_unknown_place_is_never_followed",
            "auth/test_authorizer.py::test_an_address_without_a_scheme_is_another_origin_too",
        ),
    ),
    Advisory(
        "CVE-2026-44429",
        "registry",
        "a registered URL becomes script on a page",
        (
            "oauth/test_authorization_server.py::test_what_a_client_says_of_itself_becomes_no_script",
            "oauth/test_authorization_server.py::test_names_are_escaped",
        ),
    ),
    Advisory(
        "CVE-2026-44428",
        "registry",
        "a token for another audience is accepted",
        (
            "reliability/test_token_validation.py::test_no_flawed_token_is_let_through",
            "oauth/test_verifiers.py::test_a_token_that_is_not_active_or_not_for_us",
        ),
    ),
    Advisory(
        "CVE-2026-45781",
        "registry",
        "a check is skipped if its service is busy",
        (
            "oauth/test_verifiers.py::test_no_answer_is_not_permission",
            "oauth/test_verifiers.py::test_without_keys_no_token_is_accepted",
        ),
    ),
    Advisory(
        "GHSA-g53w-w6mj-hrpp",
        "Kuadrant gateway",
        "all installations use the same key",
        (
            "protocol/test_request_state.py::test_a_server_without_a_secret_makes_one_of_its_own",
            "protocol/test_sealer.py::test_a_value_opens_only_for_its_key_purpose_and_context",
        ),
    ),
    Advisory(
        "mcp-remote 315",
        "mcp-remote",
        "parallel logins overwrite each other's verifier",
        ("reliability/test_token_storage.py::test_logins_beside_each_other_do_not_overwrite_what_the_other_needs",),
    ),
    # Handles and doors
    Advisory(
        "CVE-2026-52869, GHSA-jpw9-pfvf-9f58",
        "python-sdk",
        "another principal can use a session with its id alone",
        (
            "reliability/test_principal_isolation.py::test_sessions",
            "reliability/test_foreign_handles.py::test_the_session_of_another_principal",
        ),
    ),
    Advisory(
        "CVE-2026-33946, CVE-2026-67431",
        "ruby-sdk",
        "a replayed session id takes over a stream",
        (
            "reliability/test_foreign_handles.py::test_the_session_of_another_principal",
            "reliability/test_principal_isolation.py::test_event_ids",
        ),
    ),
    Advisory(
        "CVE-2026-52870, GHSA-hvrp-rf83-w775",
        "python-sdk",
        "handles of other principals can be read and cancelled",
        (
            "reliability/test_foreign_handles.py::test_the_call_of_another_cannot_be_cancelled",
            "reliability/test_foreign_handles.py::test_the_subscription_of_another_cannot_be_ended",
            "reliability/test_principal_isolation.py::test_states",
            "reliability/test_principal_isolation.py::test_links_to_results_that_were_kept_back",
        ),
    ),
    Advisory(
        "CVE-2025-6515",
        "oatpp-mcp",
        "session ids can be guessed",
        ("reliability/test_foreign_handles.py::test_sessions_cannot_be_guessed",),
    ),
    Advisory(
        "GHSA-vw82-7fv8-r6gp, CVE-2026-11717, CVE-2026-11718, CVE-2026-11719",
        "Obot, mcp-toolbox",
        "opaque tokens skip checks",
        ("oauth/test_verifiers.py::test_a_token_that_is_not_active_or_not_for_us",),
    ),
    Advisory(
        "CVE-2026-33032",
        "nginx-ui",
        "one of two endpoints requires no authentication",
        (
            "reliability/test_token_validation.py::test_every_route_asks",
            "auth/test_asgi_guard.py::test_without_a_token_nothing_is_served",
        ),
    ),
)
