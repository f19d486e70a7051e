"""The authorization server for the official suite: `python authserver.py --port N [--callback P]`.

It has one registered client, `conformance`. The user is anyone who allows access.
"""

import argparse

import uvicorn

from dovetail.auth import AuthorizationServer, RegisteredClient


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--callback", type=int, default=3000, help="the port of the suite's redirect URI")
    arguments = parser.parse_args()
    issuer = f"http://127.0.0.1:{arguments.port}"
    client = RegisteredClient("conformance", redirect_uris=[f"http://127.0.0.1:{arguments.callback}/callback"])
    authority = AuthorizationServer(issuer=issuer, resources=[issuer + "/mcp"], clients=[client])
    uvicorn.run(authority, host="127.0.0.1", port=arguments.port, log_level="warning", ws="none")


if __name__ == "__main__":
    main()
