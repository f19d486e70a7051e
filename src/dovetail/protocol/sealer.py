"""requestState: what a server must remember between two rounds of one request, carried by the client, sealed.

AES-GCM keeps it secret and whole; the seal also binds it to the principal and to the request it was made for, and it
expires. Every reason to refuse it looks the same from outside. The time is always an argument.

spec: mrtr#server-requirements-basic-workflow
"""
