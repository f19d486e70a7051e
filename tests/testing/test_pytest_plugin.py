"""Test the pytest plugin in a separate pytest run."""

import os

import pytest

pytest_plugins = ["pytester"]

SERVER = """
from dovetail import Server

app = Server("sums")

@app.tool
def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(sums=SERVER)
    pytester.syspathinsert()
    return pytester


# A run that loads all installed plugins needs this setting, or pytest-asyncio warns.
ASYNCIO_INI = "[pytest]\nasyncio_default_fixture_loop_scope = function"
OURS = ["-p", "dovetail.testing.pytest_plugin"]
RUNNERS = {
    "": [],
    "asyncio": ["-p", "pytest_asyncio.plugin", "-o", "asyncio_default_fixture_loop_scope=function"],
    "anyio": ["-p", "anyio.pytest_plugin"],
}


def run(project: pytest.Pytester, *options: str, runner: str = "") -> pytest.RunResult:
    """Run the tests with no other plugin but one for asynchronous tests."""
    usual = ["-p", "no:cacheprovider", "--strict-markers", "-W", "error"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        return project.runpytest_subprocess(*usual, *OURS, *RUNNERS[runner], *options)


def test_a_test_that_does_not_await(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest
        from sums import app

        @pytest.mark.mcp(server=app, transport=["memory", "http"], protocol_version=["2025-11-25", "2026-07-28"])
        def test_add(mcp_sync_client):
            assert mcp_sync_client.call("add", a=1, b=2) == 3

        @pytest.mark.mcp(app)
        def test_positional(mcp_sync_client):
            assert mcp_sync_client.protocol_version == "2026-07-28"
        """
    )
    result = run(project, "-v")
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["*test_add?http-2025-11-25?*PASSED*"])


@pytest.mark.parametrize("runner", ["asyncio", "anyio"])
def test_a_test_that_awaits(project: pytest.Pytester, runner: str) -> None:
    project.makeconftest("import pytest; anyio_backend = pytest.fixture(lambda: 'asyncio', name='anyio_backend')")
    project.makepyfile(
        f"""
        import pytest
        from dovetail import testing

        @pytest.fixture
        def mcp_server():
            from sums import app
            return app

        @pytest.mark.{runner}
        @pytest.mark.mcp(transport=["memory", "tcp"])
        async def test_add(mcp_client):
            async with mcp_client() as client:
                assert await client.call("add", a=1, b=2) == 3
            async with mcp_client(protocol_version="2025-06-18") as client:
                assert client.protocol_version == "2025-06-18"
        """
    )
    run(project, runner=runner).assert_outcomes(passed=2)


def test_faults_and_markers_of_a_class(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest
        from dovetail.errors import OutcomeUnknown

        @pytest.mark.mcp(server="sums:app", transport="tcp")
        class TestLoss:
            def test_it(self, mcp_sync_client, mcp_faults):
                mcp_faults.drop(method="tools/call")
                with pytest.raises(OutcomeUnknown):
                    mcp_sync_client.call("add", a=1, b=2)

            @pytest.mark.mcp(transport="memory")
            def test_the_nearest_wins(self, _mcp_options):
                assert _mcp_options == {"server": "sums:app", "transport": "memory"}
        """
    )
    run(project).assert_outcomes(passed=2)


def test_a_server_must_be_named(project: pytest.Pytester) -> None:
    project.makepyfile("def test_it(mcp_sync_client): pass")
    result = run(project)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*UsageError: *@pytest.mark.mcp(server=...)*"])


def test_a_cassette(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOVETAIL_RECORD_CASSETTES", raising=False)
    test = """
        import pytest
        from dovetail import testing

        @pytest.mark.mcp(server="sums:app")
        def test_sum(mcp_sync_client, mcp_cassette):
            with testing.record_traffic(mcp_sync_client) as traffic:
                mcp_sync_client.call("add", a=1, b={number})
            traffic.assert_matches(mcp_cassette)
        """
    project.makepyfile(test_sums=test.format(number=2))
    run(project).assert_outcomes(failed=1)
    run(project, "--mcp-record").assert_outcomes(passed=1)
    assert (project.path / "cassettes" / "test_sums.test_sum.jsonl").exists()
    run(project).assert_outcomes(passed=1)
    project.makepyfile(test_sums=test.format(number=3))
    result = run(project)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*test_sums.test_sum.jsonl*", '*-*"b": 2*', '*+*"b": 3*'])


def test_tests_of_two_classes_have_different_cassettes(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_paths="""
        class TestA:
            def test_x(self, mcp_cassette):
                assert mcp_cassette.name == "test_paths.TestA.test_x.jsonl"

        class TestB:
            class TestInner:
                def test_x(self, mcp_cassette):
                    assert mcp_cassette.name == "test_paths.TestB.TestInner.test_x.jsonl"
        """
    )
    run(project).assert_outcomes(passed=2)


def test_recording_ends_with_the_run(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    project.makeini(ASYNCIO_INI)
    monkeypatch.delenv("DOVETAIL_RECORD_CASSETTES", raising=False)
    project.makepyfile(
        """
        import os

        def test_it():
            assert os.environ["DOVETAIL_RECORD_CASSETTES"] == "1"
        """
    )
    project.inline_run("-p", "no:cacheprovider", "--mcp-record").assertoutcome(passed=1)
    assert "DOVETAIL_RECORD_CASSETTES" not in os.environ


def test_pytest_finds_the_plugin_by_itself(project: pytest.Pytester) -> None:
    project.makeini(ASYNCIO_INI)
    project.runpytest_subprocess("--help").stdout.fnmatch_lines(["*--mcp-record*"])
    project.runpytest_subprocess("--markers").stdout.fnmatch_lines(
        ["@pytest.mark.mcp(server, transport, protocol_version, *"]
    )


def test_loading_the_plugin_loads_nothing_of_dovetail_but_itself(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import sys

        def test_it():
            ours = {name for name in sys.modules if name.startswith("dovetail")}
            few = {"dovetail", "dovetail.lazy", "dovetail.version"}
            assert ours == few | {"dovetail.testing", "dovetail.testing.pytest_plugin"}
        """
    )
    run(project).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("marked", "says"),
    [
        ('server=app, transprt="http"', "*test_it*transprt=*transport*"),
        ("app, elicitation_handlr=print", "*elicitation_handlr=*elicitation_handler*"),
        ("app, target=5", "*target=*"),
        ("app, zzz=1", "*zzz=*"),
        ('app, "http"', "*test_it*2*"),
        ('app, transport="htp"', "*transport*memory*'htp'*http*"),
        ('app, transport=["memory", "htp"]', "*transport*memory*'htp'*"),
        ("app, transport=[]", "*transport*[[][]]*"),
        ("app, protocol_version=()", "*protocol_version*()*"),
        ('app, transport={"memory"}', "*transport*memory*"),
        ("app, transport=None", "*transport*memory*None*"),
        ("app, server=app", "*test_it*server=*"),
        ("app, option=1", "*option=*"),
    ],
)
def test_a_marker_with_invalid_arguments_is_refused(project: pytest.Pytester, marked: str, says: str) -> None:
    project.makepyfile(
        f"""
        import pytest
        from sums import app

        @pytest.mark.mcp({marked})
        def test_it(mcp_sync_client):
            pass
        """
    )
    result = run(project)
    assert result.ret != 0
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([says])
