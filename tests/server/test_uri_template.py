"""Test URI templates: the RFC 6570 expansions, matching, and rejected values."""

import re
import statistics
import time
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dovetail.protocol.uri_key import MAX_URI_CHARS
from dovetail.server.items.uri_template import MAX_TEMPLATE_CHARS, URITemplate, expand
from support.mentions import values

VALUES: dict[str, Any] = {
    "count": ["one", "two", "three"],
    "dom": ["example", "com"],
    "dub": "me/too",
    "hello": "Hello World!",
    "half": "50%",
    "var": "value",
    "who": "fred",
    "base": "http://example.com/home/",
    "path": "/foo/bar",
    "list": ["red", "green", "blue"],
    "keys": {"semi": ";", "dot": ".", "comma": ","},
    "v": "6",
    "x": "1024",
    "y": "768",
    "empty": "",
    "empty_keys": {},
    "undef": None,
}

# RFC 6570 sections 1.2 and 3.2: template, expansion.
EXPANSIONS = """
{count}                 one,two,three
{count*}                one,two,three
{/count}                /one,two,three
{/count*}               /one/two/three
{;count}                ;count=one,two,three
{;count*}               ;count=one;count=two;count=three
{?count}                ?count=one,two,three
{?count*}               ?count=one&count=two&count=three
{&count*}               &count=one&count=two&count=three
{var}                   value
{hello}                 Hello%20World%21
{half}                  50%25
O{empty}X               OX
O{undef}X               OX
{x,y}                   1024,768
{x,hello,y}             1024,Hello%20World%21,768
?{x,empty}              ?1024,
?{x,undef}              ?1024
?{undef,y}              ?768
{var:3}                 val
{var:30}                value
{list}                  red,green,blue
{list*}                 red,green,blue
{keys}                  semi,%3B,dot,.,comma,%2C
{keys*}                 semi=%3B,dot=.,comma=%2C
{+var}                  value
{+hello}                Hello%20World!
{+half}                 50%25
{base}index             http%3A%2F%2Fexample.com%2Fhome%2Findex
{+base}index            http://example.com/home/index
O{+empty}X              OX
O{+undef}X              OX
{+path}/here            /foo/bar/here
here?ref={+path}        here?ref=/foo/bar
up{+path}{var}/here     up/foo/barvalue/here
{+x,hello,y}            1024,Hello%20World!,768
{+path,x}/here          /foo/bar,1024/here
{+path:6}/here          /foo/b/here
{+list}                 red,green,blue
{+list*}                red,green,blue
{+keys}                 semi,;,dot,.,comma,,
{+keys*}                semi=;,dot=.,comma=,
{#var}                  #value
{#hello}                #Hello%20World!
{#half}                 #50%25
foo{#empty}             foo#
foo{#undef}             foo
X{#var}                 X#value
X{#hello}               X#Hello%20World!
{#x,hello,y}            #1024,Hello%20World!,768
{#path,x}/here          #/foo/bar,1024/here
{#path:6}/here          #/foo/b/here
{#list}                 #red,green,blue
{#list*}                #red,green,blue
{#keys}                 #semi,;,dot,.,comma,,
{#keys*}                #semi=;,dot=.,comma=,
{.who}                  .fred
{.who,who}              .fred.fred
{.half,who}             .50%25.fred
www{.dom*}              www.example.com
X{.var}                 X.value
X{.empty}               X.
X{.undef}               X
X{.var:3}               X.val
X{.list}                X.red,green,blue
X{.list*}               X.red.green.blue
X{.keys}                X.semi,%3B,dot,.,comma,%2C
X{.keys*}               X.semi=%3B.dot=..comma=%2C
X{.empty_keys}          X
X{.empty_keys*}         X
{/who}                  /fred
{/who,who}              /fred/fred
{/half,who}             /50%25/fred
{/who,dub}              /fred/me%2Ftoo
{/var}                  /value
{/var,empty}            /value/
{/var,undef}            /value
{/var,x}/here           /value/1024/here
{/var:1,var}            /v/value
{/list}                 /red,green,blue
{/list*}                /red/green/blue
{/list*,path:4}         /red/green/blue/%2Ffoo
{/keys}                 /semi,%3B,dot,.,comma,%2C
{/keys*}                /semi=%3B/dot=./comma=%2C
{;who}                  ;who=fred
{;half}                 ;half=50%25
{;empty}                ;empty
{;v,empty,who}          ;v=6;empty;who=fred
{;v,undef,who}          ;v=6;who=fred
{;x,y}                  ;x=1024;y=768
{;x,y,empty}            ;x=1024;y=768;empty
{;x,y,undef}            ;x=1024;y=768
{;hello:5}              ;hello=Hello
{;list}                 ;list=red,green,blue
{;list*}                ;list=red;list=green;list=blue
{;keys}                 ;keys=semi,%3B,dot,.,comma,%2C
{;keys*}                ;semi=%3B;dot=.;comma=%2C
{?who}                  ?who=fred
{?half}                 ?half=50%25
{?x,y}                  ?x=1024&y=768
{?x,y,empty}            ?x=1024&y=768&empty=
{?x,y,undef}            ?x=1024&y=768
{?var:3}                ?var=val
{?list}                 ?list=red,green,blue
{?list*}                ?list=red&list=green&list=blue
{?keys}                 ?keys=semi,%3B,dot,.,comma,%2C
{?keys*}                ?semi=%3B&dot=.&comma=%2C
{&who}                  &who=fred
{&half}                 &half=50%25
?fixed=yes{&x}          ?fixed=yes&x=1024
{&x,y,empty}            &x=1024&y=768&empty=
{&x,y,undef}            &x=1024&y=768
{&var:3}                &var=val
{&list}                 &list=red,green,blue
{&list*}                &list=red&list=green&list=blue
{&keys}                 &keys=semi,%3B,dot,.,comma,%2C
{&keys*}                &semi=%3B&dot=.&comma=%2C
"""


@pytest.mark.parametrize(("text", "expected"), [line.split() for line in EXPANSIONS.split("\n") if line])
def test_expands_as_the_rfc_lists(text: str, expected: str) -> None:
    assert expand(text, VALUES) == expected


def test_expands_literals_numbers_and_existing_escapes() -> None:
    assert expand("a/\u00f6/{n}", {"n": 7}) == "a/%C3%B6/7"
    assert expand("{n}", {"n": 0}) == "0"
    assert expand("{+a}", {"a": "%20%zz"}) == "%20%25zz"
    assert expand("{?keys*}", {"keys": {"a": ""}}) == "?a="
    assert expand("{;keys*}", {"keys": {"a": ""}}) == ";a"


def test_a_list_has_no_prefix() -> None:
    with pytest.raises(ValueError, match="list"):
        expand("{list:3}", VALUES)


FAULTS: list[tuple[str, tuple[object, ...]]] = [
    ("x://{a", ()),
    ("x://{{a}}", ()),
    ("x://a}", ()),
    ("x://{a}}", ()),
    ("x://{}", ()),
    ("x://{+}", ()),
    ("x://{a-b}", ()),
    ("x://{a,}", ()),
    ("x://{a..b}", ()),
    ("x://{a }", ()),
    ("x://{a**}", ()),
    ("x://{\u00f6}", ()),
    ("x://{%41}", ()),
    ("x://{=a}", ("=",)),
    ("x://{,a}", (",",)),
    ("x://{!a}", ("!",)),
    ("x://{@a}", ("@",)),
    ("x://{|a}", ("|",)),
    ("x://{a:0}", ("1", "9999")),
    ("x://{a:10000}", ("1", "9999")),
    ("x://{a:x}", ("1", "9999")),
    ("x://{a:3*}", ("1", "9999")),
    ("x://{a:3}", ()),
    ("x://{a}/{a}", ("a",)),
    ("x://{a}{?a}", ("a",)),
    ("x://{a}{b}", ("a", "b")),
    ("x://{+a}{b}", ("a", "b")),
    ("x://{a*}{+b}", ("a", "b")),
    ("x://{+a}/{+b}", ("a", "b")),
    ("x://{/a*}{/b*}", ("a", "b")),
    ("x://{+a,b}", ()),
    ("x://{#a,b}", ()),
    ("x://{.a*,b}", ("a",)),
    ("x://{a*},{b}", ("a",)),
    ("x://{+p}{;a*}", ("a",)),
    ("x://{+p},{a*}", ("a",)),
    ("x://y{&q}", ()),
    ("x://y?z{?q}", ()),
    ("x://y{?a}{?b}", ()),
    ("x://y{?q}/z", ()),
    ("x://y{?q}{z}", ()),
    ("x://y{#q}/z", ()),
    ("x://y{#q}{?z}", ()),
    ("x://y#z{#q}", ()),
    ("x://a b", ()),
    ("x://a\n", ()),
    ("x://100%", ()),
    ("x://a\\b", ()),
    ("x://\ud800", ()),
    ("x" * (MAX_TEMPLATE_CHARS + 1), (MAX_TEMPLATE_CHARS,)),
]


@pytest.mark.parametrize(("text", "named"), FAULTS)
def test_names_the_fault_of_a_template(text: str, named: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match=values(*named)) as caught:
        URITemplate(text)
    assert text[:4] in str(caught.value)
    assert len(str(caught.value)) < 300


def test_describes_its_variables() -> None:
    template = URITemplate("x://{a}{/b*}{?c,d*}{#e}")
    assert template.variables == ("a", "b", "c", "d", "e")
    assert template.required == ("a", "b")
    assert template.lists == {"b", "d"}
    assert template.text == "x://{a}{/b*}{?c,d*}{#e}"
    assert repr(template) == "URITemplate('x://{a}{/b*}{?c,d*}{#e}')"


def test_more_literal_text_is_more_specific() -> None:
    texts = ["x://{+a}", "x://a/{b}", "x://{a}", "x://a/b", "x://{a}/b", "x://a/{+b}", "x://a/{b}{?c}"]
    ordered = sorted(texts, key=lambda text: URITemplate(text).specificity, reverse=True)
    assert ordered == ["x://a/b", "x://a/{b}", "x://{a}/b", "x://a/{b}{?c}", "x://a/{+b}", "x://{a}", "x://{+a}"]


MATCHES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("config://app", "config://app", {}),
    ("config://app", "config://app/", None),
    ("config://app", "config://ap", None),
    ("city://{name}/profile", "city://Oslo/profile", {"name": "Oslo"}),
    ("city://{name}/profile", "city://S%C3%A3o%20Paulo/profile", {"name": "S\u00e3o Paulo"}),
    ("city://{name}/profile", "city://S\u00e3o Paulo/profile", {"name": "S\u00e3o Paulo"}),
    ("city://{name}/profile", "city:///profile", None),
    ("city://{name}/profile", "city://a/b/profile", None),
    ("city://{name}/profile", "city://a/profile/", None),
    ("city://{name}/profile", "city://a/Profile", None),
    ("city://{name}", "city://a?b", None),
    ("city://{name}", "city://a#b", None),
    ("city://{name}", "city://a@b:c", {"name": "a@b:c"}),
    ("city://{name}", "city://", None),
    ("x://gr\u00f6\u00dfe/{a}", "x://gr%c3%b6%C3%9Fe/1", {"a": "1"}),
    ("x://gr%C3%B6%C3%9Fe/{a}", "x://gr\u00f6\u00dfe/1", {"a": "1"}),
    ("x://{a}/{b}", "x://1/2", {"a": "1", "b": "2"}),
    ("x://{a}-{b}", "x://1-2-3", {"a": "1", "b": "2-3"}),
    ("x://{a}-{b}", "x://-2", None),
    ("x://{a}-{b}", "x://--2", {"a": "-", "b": "2"}),
    ("x://{a}2{b}", "x://%202z", {"a": " ", "b": "z"}),
    ("x://{a}.{b}/c", "x://1.2.3/c", {"a": "1", "b": "2.3"}),
    ("x://{a,b}", "x://1,2", {"a": "1", "b": "2"}),
    ("x://{a,b}", "x://1%2C2", None),
    ("x://{a*}", "x://1,2%2C,3", {"a": ["1", "2,", "3"]}),
    ("x://{a*}", "x://1,,3", None),
    ("x://{a*}-{b}", "x://1,2-3", {"a": ["1", "2"], "b": "3"}),
    ("x://y{.a,b}", "x://y.1.2", {"a": "1", "b": "2"}),
    ("x://y{.a*}", "x://y.1.2", {"a": ["1", "2"]}),
    ("x://y{/a,b}", "x://y/1/2", {"a": "1", "b": "2"}),
    ("x://y{/a*}", "x://y/1/2/3", {"a": ["1", "2", "3"]}),
    ("x://y{/a*}", "x://y", None),
    ("x://y{/a*}", "x://y/", None),
    ("x://y{/a*}", "x://y/1//2", None),
    ("x://y{/a*}", "x://y/1?2", None),
    ("x://y{/a*,b}/z", "x://y/1/2/3/z", {"a": ["1", "2"], "b": "3"}),
    ("x://y{;a,b}", "x://y;a=1;b=2", {"a": "1", "b": "2"}),
    ("x://y{;a*}", "x://y;a=1;a=2", {"a": ["1", "2"]}),
    ("x://y{;a}", "x://y;b=1", None),
    ("x://{+a}", "x://1/2/3", {"a": "1/2/3"}),
    ("x://{+a}", "x://1%2F2", {"a": "1/2"}),
    ("x://{+a}", "x://https://e.com/?q=1#f", {"a": "https://e.com/?q=1#f"}),
    ("x://{+a}", "x://", None),
    ("x://{+a}/{b}.txt", "x://1/2/3.txt", {"a": "1/2", "b": "3"}),
    ("x://{a}/{+b}/{c}/z", "x://1/2/3/4/z", {"a": "1", "b": "2/3", "c": "4"}),
    ("x://{+a}/{b}", "x://1", None),
    ("x://{+a*}", "x://1,2/3", {"a": ["1", "2/3"]}),
    ("x://y{?a,b}", "x://y", {}),
    ("x://y{?a,b}", "x://y?b=2", {"b": "2"}),
    ("x://y{?a,b}", "x://y?b=2&a=1", {"a": "1", "b": "2"}),
    ("x://y{?a,b}", "x://y?a=", {"a": ""}),
    ("x://y{?a,b}", "x://y?a", {"a": ""}),
    ("x://y{?a,b}", "x://y?a=1=2", {"a": "1=2"}),
    ("x://y{?a,b}", "x://y?a=x%26b%3D2", {"a": "x&b=2"}),
    ("x://y{?a,b}", "x://y?a=1+2", {"a": "1+2"}),
    ("x://y{?a,b}", "x://y?a=2024/01/02", {"a": "2024/01/02"}),
    ("x://y{?a,b}", "x://y?a=1&a=2", None),
    ("x://y{?a,b}", "x://y?c=1", None),
    ("x://y{?a,b}", "x://y?A=1", None),
    ("x://y{?a,b}", "x://y?", None),
    ("x://y{?a,b}", "x://y?a=1&", None),
    ("x://y{?a,b}", "x://y?a=1#f", None),
    ("x://y{?a*}", "x://y?a=1&a=2", {"a": ["1", "2"]}),
    ("x://y{?a*}", "x://y?a=1", {"a": ["1"]}),
    ("x://{a}{?b}{&c}", "x://1?c=3&b=2", {"a": "1", "b": "2", "c": "3"}),
    ("x://{+a}{?b}", "x://1/2?b=3", {"a": "1/2", "b": "3"}),
    ("x://y?k=1{&q}", "x://y?k=1&q=2", {"q": "2"}),
    ("x://y?k=1{&q}", "x://y?k=1", {}),
    ("x://y?k=1{&q}", "x://y?q=2", None),
    ("x://y?k=1{&q}", "x://y", None),
    ("x://y?k={k}&m={m}{&q}", "x://y?k=1&m=2&q=3", {"k": "1", "m": "2", "q": "3"}),
    ("x://y?k={k}", "x://y?k=1&m=2", None),
    ("x://y{#f}", "x://y", {}),
    ("x://y{#f}", "x://y#", {"f": ""}),
    ("x://y{#f}", "x://y#a/b%20c", {"f": "a/b c"}),
    ("x://y{?q}{#f}", "x://y?q=1#2", {"q": "1", "f": "2"}),
    ("x://y{#f*}", "x://y#1,2", {"f": ["1", "2"]}),
    ("x://y#{a}", "x://y#1", {"a": "1"}),
    ("{+any}", "any://y", {"any": "any://y"}),
    ("{a.b}", "1", {"a.b": "1"}),
]


@pytest.mark.parametrize(("text", "uri", "expected"), MATCHES)
def test_matches_backwards(text: str, uri: str, expected: dict[str, Any] | None) -> None:
    assert URITemplate(text).match(uri) == expected


CASES: list[tuple[str, str, bool]] = [
    ("HTTP://Example.COM/{a}", "http://example.com/A", True),
    ("http://example.com/{a}", "HTTP://EXAMPLE.com/A", True),
    ("http://{a}.Example.com", "http://A.EXAMPLE.COM", True),
    ("http://{a}.Example.com/B", "http://A.example.com/B", True),
    ("http://example.com/Path/{a}", "http://example.com/path/A", False),
    ("http://example.com/path?K={a}", "http://example.com/path?k=A", False),
    ("http://User@example.com/{a}", "http://User@EXAMPLE.com/A", True),
    ("http://User@example.com/{a}", "http://user@example.com/A", False),
    ("URN:Isbn/{a}", "urn:Isbn/A", True),
    ("URN:Isbn/{a}", "urn:isbn/A", False),
    ("x://{+a}End", "x://AEnd", True),
    ("x://{+a}End", "x://Aend", False),
    ("x://{+a}End", "x://A/bEnd", True),
]


@pytest.mark.parametrize(("text", "uri", "matches"), CASES)
def test_only_scheme_and_host_ignore_case(text: str, uri: str, matches: bool) -> None:
    found = URITemplate(text).match(uri)
    assert (found is not None) is matches
    assert found is None or str(found["a"]).startswith("A")


TRAVERSALS = [
    "..",
    ".",
    "../etc/passwd",
    "a/../../etc/passwd",
    "a/..",
    "./a",
    "a/./b",
    "/etc/passwd",
    "//etc/passwd",
    "%2e%2e",
    "%2E%2e",
    ".%2e",
    "%2e.",
    "%2e",
    "%2e%2e%2fetc%2fpasswd",
    "%2E%2E%2Fetc",
    "..%2fetc",
    "a%2f..%2f..%2fetc",
    "a/%2e%2e/b",
    "%2fetc%2fpasswd",
    "..\\windows",
    "..%5cwindows",
    "..%5Cwindows",
    "a%5Cb",
    "a\\b",
    "\\\\host\\share",
    "a%00",
    "%00",
    "a\0b",
    "..%00/etc",
    "%c0%ae%c0%ae/etc",
    "%c0%af",
    "%e0%80%ae",
    "%f0%80%80%ae",
    "%c1%9c",
    "%80",
    "%ff",
    "%ed%a0%80",
    "%",
    "%2",
    "%zz",
    "%u002e",
    "%%32%65",
    "a%",
    "C:/windows",
    "c%3a%2fwindows",
    "\ud800",
]
OPEN_TEMPLATES = ["f://r/{+v}", "f://r{/v*}", "f://r/{v}", "f://r/{v*}", "f://r{?v}", "f://r{?v*}", "f://r{#v}"]


@pytest.mark.parametrize("value", TRAVERSALS, ids=ascii)
@pytest.mark.parametrize("text", OPEN_TEMPLATES)
def test_nothing_climbs_out(text: str, value: str) -> None:
    template = URITemplate(text)
    lead = template.expand({"v": "v"}).removesuffix("v")
    assert template.match(lead + "v") is not None
    assert template.match(lead + value) is None


@pytest.mark.parametrize("value", ["a%2fb", "a/b", "%2f", "C:", ".%2e%2f"])
@pytest.mark.parametrize("text", ["f://r/{v}", "f://r/{v*}", "f://r.{v}", "f://r{;v}", "f://r/{v}/x"])
def test_a_simple_value_is_one_name(text: str, value: str) -> None:
    assert URITemplate(text).match(text.replace("{;v}", ";v={v}").replace("{v*}", "{v}").replace("{v}", value)) is None


@pytest.mark.parametrize(
    ("value", "once"),
    [
        ("%252e%252e%252fetc", "%2e%2e%2fetc"),
        ("%252E%252E", "%2E%2E"),
        ("%255c", "%5c"),
        ("%2500", "%00"),
        ("%25252e", "%252e"),
    ],
)
@pytest.mark.parametrize("text", ["f://r/{+v}", "f://r/{v}", "f://r{?v}"])
def test_a_double_escape_is_decoded_once_and_stays_inert(text: str, value: str, once: str) -> None:
    template = URITemplate(text)
    lead = template.expand({"v": "v"}).removesuffix("v")
    assert template.match(lead + value) == {"v": once}


@pytest.mark.parametrize("value", ["...", "..a", "a..b", ".hidden", "a.", "..a/b..", "C:file"])
def test_dots_inside_a_name_are_harmless(value: str) -> None:
    assert URITemplate("f://r/{+v}").match(f"f://r/{value}") == {"v": value}


def test_an_overlong_uri_never_matches() -> None:
    template = URITemplate("x://{a}")
    assert template.match("x://" + "a" * (MAX_URI_CHARS - 4)) is not None
    assert template.match("x://" + "a" * (MAX_URI_CHARS - 3)) is None


def is_a_name(text: str) -> bool:
    return text not in (".", "..") and re.fullmatch("[A-Za-z]:", text) is None


NAMES = st.text(st.characters(exclude_characters="/\\\0", codec="utf-8"), min_size=1, max_size=12).filter(is_a_name)
LISTS = st.lists(NAMES, min_size=1, max_size=4)


@given(a=NAMES, b=NAMES, c=LISTS, d=NAMES, e=LISTS)
def test_what_is_expanded_is_matched(a: str, b: str, c: list[str], d: str, e: list[str]) -> None:
    template = URITemplate("x://{a,b}/z{/c*}/y;{?d,e*}")
    values = {"a": a, "b": b, "c": c, "d": d, "e": e}
    assert template.match(template.expand(values)) == values


@given(a=NAMES, b=NAMES, c=LISTS)
def test_what_is_expanded_is_matched_in_every_style(a: str, b: str, c: list[str]) -> None:
    values = {"a": a, "b": b, "c": c}
    template = URITemplate("x://h/{c*}:{a}{;b}")
    assert template.match(template.expand(values)) == values
    template = URITemplate("x://h{;c*}/{a}?q={b}")
    assert template.match(template.expand(values)) == values


@given(segments=st.lists(NAMES, min_size=1, max_size=4), f=NAMES)
def test_reserved_values_come_back(segments: list[str], f: str) -> None:
    # An escape inside a reserved value is kept by the RFC, so it comes back decoded.
    path = "/".join(segments)
    assume("%" not in path and "#" not in path and "%" not in f)
    template = URITemplate("x://h/{+path}{#f}")
    assert template.match(template.expand({"path": path, "f": f})) == {"path": path, "f": f}


PIECES = {"{v}": "[^/]+", "{+v}": r"(?!/).+", "{/v*}": "(?:/[^/]+)+"}


@st.composite
def templates_with_oracle(draw: st.DrawFn) -> tuple[str, str]:
    """A template of few letters, and a pattern that finds any match by going back as often as it takes."""
    text, pattern = "", ""
    count = draw(st.integers(0, 4))
    wide = draw(st.integers(-1, 4))
    for index in range(count + 1):
        literal = draw(st.text("ab/-", max_size=3))
        text, pattern = text + literal, pattern + re.escape(literal)
        if index < count:
            piece = draw(st.sampled_from(["{+v}", "{/v*}"])) if index == wide else "{v}"
            text, pattern = text + piece.replace("v", f"v{index}"), pattern + PIECES[piece]
    return text, pattern


@given(templates_with_oracle(), st.lists(st.text("ab/-", max_size=14), min_size=1, max_size=12))
def test_agrees_with_an_exhaustive_search(pair: tuple[str, str], uris: list[str]) -> None:
    text, pattern = pair
    assume(re.search(r"\}\{(?!/)", text) is None)
    template = URITemplate(text)
    for uri in [*uris, template.expand(dict.fromkeys(template.variables, "a"))]:
        found = template.match(uri)
        assert (found is not None) is (re.fullmatch(pattern, uri) is not None)
        assert found is None or template.expand(found) == uri


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("{}%/"), max_size=30))
def test_plain_text_matches_itself_or_has_a_fault(text: str) -> None:
    assume(not re.search(r"\{[^{}]+\}", text))  # an expression
    if re.search(r"[{}\x00-\x20\x7f<>\"\\^`|%]", text):
        with pytest.raises(ValueError, match=r"\S"):
            URITemplate(text)
    else:
        assert URITemplate(text).match(text) == {}


@given(st.text("{}abc+#./;?&,*:%=1 ", max_size=30), st.text("abc/?&=#.,;%2e", max_size=30))
def test_any_template_on_any_uri_answers(text: str, uri: str) -> None:
    try:
        template = URITemplate(text)
    except ValueError:
        return
    found = template.match(uri)
    assert found is None or set(template.required) <= set(found) <= set(template.variables)


ADVERSARIES = [
    ("x://{a}a{b}a{c}a{d}a{e}b", "x://", "a", ""),
    ("x://{+a}/{b}a{c}a{d}!", "x://", "a/", ""),
    ("x://" + "a".join(f"{{v{n}}}" for n in range(200)) + "b", "x://", "a", ""),
    ("x://{a}" + "a" * 99 + "b{c}", "x://", "a", ""),
    ("x://y{/a*}/b/{c}", "x://y", "/b", ""),
    ("x://y{.a*}/z", "x://y", ".a", "!"),
    ("x://y{;a*}", "x://y", ";a=a", "!"),
    ("x://y{?a*}", "x://y?", "a=1&", "b"),
    ("x://{+a}{?b}", "x://", "%2e%2e%2f", ""),
    ("x://{a}", "x://", "@", "/"),
    ("x://{a}", "x://", "%", ""),
    ("x://{a}", "x://", "\u00f6", ""),
]


def seconds(template: URITemplate, uri: str) -> float:
    rounds = []
    for _ in range(9):
        start = time.thread_time()
        for _ in range(5):
            template.match(uri)
        rounds.append(time.thread_time() - start)
    return statistics.median(rounds)


@pytest.mark.parametrize(("text", "head", "unit", "tail"), ADVERSARIES)
def test_eight_times_the_uri_takes_about_eight_times_the_time(text: str, head: str, unit: str, tail: str) -> None:
    template = URITemplate(text)
    small, large = (
        head + unit * ((size - len(head) - 1) // len(unit)) + tail for size in (MAX_URI_CHARS // 8, MAX_URI_CHARS)
    )
    # A quadratic search would take sixty-four times as long; a busy machine does not take four times as long.
    ratios = [seconds(template, large) / seconds(template, small) for _ in range(3)]
    assert min(ratios) < 32
