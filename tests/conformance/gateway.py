"""A gateway for the official conformance suite, in front of the server of this folder at a URL."""

import argparse

from dovetail import Host, Policy

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve a gateway in front of a server.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--url", required=True)
    arguments = parser.parse_args()
    host = Host(policy=Policy("allow"))
    host.add("conformance", arguments.url)
    # With one server, the gateway keeps the names that the suite looks for.
    app = host.as_server(server="conformance")
    app.run("http", host="127.0.0.1", port=arguments.port, path="/mcp")
