"""A browser without a user: it opens the address and allows the access."""

import re
import sys
import urllib.parse
import urllib.request


def main(url: str) -> None:
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(url, timeout=20) as reply:
        page = reply.read().decode()
    fields = dict(re.findall(r'name="(request|csrf)" value="([^"]+)"', page)) | {"decision": "allow"}
    place = urllib.parse.urljoin(url, "/consent")
    with browser.open(place, urllib.parse.urlencode(fields).encode(), timeout=20) as reply:
        reply.read()


if __name__ == "__main__":
    main(sys.argv[1])
