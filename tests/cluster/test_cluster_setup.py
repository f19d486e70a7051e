"""Test how a server finds its cluster and its secret keys: options, environment variables and the folders of a user."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import Server
from dovetail.cluster import Cluster
from dovetail.cluster.local import local_folder
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.server.attachments import find_secret_keys
from dovetail.server.environment import CLUSTER_VARIABLE, SECRET_KEYS_VARIABLE, WORKERS_FOLDER_VARIABLE
from dovetail.server.server import get_dispatcher

KEY = "a key of sixteen bytes or more"
OTHER_KEY = "another key of sixteen bytes"
REDIS = "redis://:geheim@127.0.0.1:6379/0"


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a user folder, and an environment that names no cluster."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(CLUSTER_VARIABLE, raising=False)
    monkeypatch.delenv(SECRET_KEYS_VARIABLE, raising=False)
    return tmp_path


def find_cluster(server: Server) -> Any:
    return get_dispatcher(server).cluster


def test_a_server_has_no_cluster_by_default() -> None:
    server = Server("any")
    server.asgi()
    assert find_cluster(server) is None


@pytest.mark.parametrize(
    "cluster", ["memcached://host", "localhost:6379", "", "Local", "redis://", "redis://host/x", "redis://host?x=1"]
)
def test_an_invalid_url_is_refused(cluster: str) -> None:
    with pytest.raises(ValueError, match=r"cluster|Redis URL"):
        Server("any", cluster=cluster, secret_keys=[KEY])


@pytest.mark.parametrize("cluster", [1, b"local", object(), ["local"]])
def test_a_value_of_another_type_is_refused(cluster: Any) -> None:
    with pytest.raises(TypeError, match="cluster="):
        Server("any", cluster=cluster, secret_keys=[KEY])


@pytest.mark.parametrize("options", [{"prefix": ""}, {"prefix": "{a}"}, {"timeout": 0}, {"timeout": float("nan")}])
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Cluster("local", **options)


def test_the_password_is_never_shown() -> None:
    assert "geheim" not in repr(Cluster(REDIS))
    assert "127.0.0.1:6379" in repr(Cluster(REDIS))
    with pytest.raises(ValueError, match="postgres") as caught:
        Cluster("postgres://:geheim@host")
    assert "geheim" not in str(caught.value)


def test_redis_requires_keys_that_all_workers_share() -> None:
    with pytest.raises(ValueError, match=SECRET_KEYS_VARIABLE):
        Server("any", cluster=REDIS)


def test_a_state_object_requires_keys_too() -> None:
    with pytest.raises(ValueError, match=SECRET_KEYS_VARIABLE):
        Server("any", cluster=MemoryBackend())


def test_keys_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_KEYS_VARIABLE, f"{KEY}, {OTHER_KEY},")
    assert list(find_cluster(Server("any", cluster=REDIS)).secret_keys) == [KEY, OTHER_KEY]
    mine = "a key that the program passes"
    assert list(find_cluster(Server("any", cluster=REDIS, secret_keys=[mine])).secret_keys) == [mine]


def test_the_environment_names_the_default_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLUSTER_VARIABLE, "local")
    server = Server("any")
    assert find_cluster(server) is None  # The server may be mounted on another server, or be served over stdio.
    server.asgi()
    first = find_cluster(server)
    server.asgi()
    assert first is not None
    assert find_cluster(server) is first


def test_a_wrong_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLUSTER_VARIABLE, "memcached://host")
    with pytest.raises(ValueError, match=CLUSTER_VARIABLE):
        Server("any")


def test_a_mounted_server_does_not_join_the_cluster_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLUSTER_VARIABLE, "local")
    outer, inner = Server("outer"), Server("inner")
    outer.mount(inner)
    outer.asgi()
    assert find_cluster(outer) is not None
    assert find_cluster(inner) is None


def test_the_redis_extra_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ImportError, match=r"dovetail-mcp\[redis\]"):
        Server("any", cluster=REDIS, secret_keys=[KEY])


# The folders of a user.


def test_servers_of_one_name_share_a_folder_and_a_key(runtime_folder: Path) -> None:
    first, second, other = (
        Server("one", cluster="local"),
        Server("one", cluster="local"),
        Server("two", cluster="local"),
    )
    assert find_cluster(first).secret_keys == find_cluster(second).secret_keys
    folders = {path for path in (runtime_folder / "dovetail").iterdir() if path.is_dir()}
    assert len(folders) == 2
    assert find_cluster(other).secret_keys == find_cluster(first).secret_keys
    Server("one", cluster=Cluster("local", prefix="staging"))
    assert len({path for path in (runtime_folder / "dovetail").iterdir() if path.is_dir()}) == 3
    for path in (runtime_folder / "dovetail", *folders):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((runtime_folder / "dovetail" / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_folder_that_others_can_use_is_refused(runtime_folder: Path, mode: int) -> None:
    (runtime_folder / "dovetail").mkdir()
    (runtime_folder / "dovetail").chmod(mode)
    with pytest.raises(PermissionError, match="dovetail"):
        Server("one", cluster="local")


def test_a_link_to_a_folder_is_refused(runtime_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (runtime_folder / "dovetail").symlink_to(elsewhere)
    with pytest.raises(PermissionError):
        Server("one", cluster="local")


def test_the_folder_of_workers_is_removed_at_the_end(runtime_folder: Path) -> None:
    with local_folder.create_workers_folder() as folder:
        assert len(local_folder.read_key(folder)) == 32
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


def test_folders_of_killed_programs_are_removed_and_others_stay(runtime_folder: Path) -> None:
    program = (
        "import os\nfrom dovetail.cluster.local.local_folder import create_workers_folder\n"
        "with create_workers_folder() as folder:\n    print(folder, flush=True)\n    os._exit(1)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    abandoned = Path(killed.stdout.strip())
    assert abandoned.exists()
    with local_folder.create_workers_folder() as used, local_folder.create_workers_folder():
        assert not abandoned.exists()
        assert used.exists()


def test_a_worker_uses_the_folder_and_the_key_of_its_parent(
    runtime_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with local_folder.create_workers_folder() as folder:
        monkeypatch.setattr("dovetail.server.environment._workers_folder", str(folder))
        server = Server("any")
        server.asgi()
        assert list(find_cluster(server).secret_keys) == [local_folder.read_key(folder)]
        # The keys of several machines cannot come from a folder of one machine.
        assert find_secret_keys((), Cluster(REDIS)) == ()


def test_programs_that_a_worker_starts_do_not_join_its_cluster() -> None:
    environment = os.environ | {WORKERS_FOLDER_VARIABLE: "/nowhere"}
    program = (
        "import os, sys\nfrom dovetail.server.attachments import WORKERS_FOLDER_VARIABLE, find_default_cluster\n"
        "sys.exit(WORKERS_FOLDER_VARIABLE in os.environ or find_default_cluster() is None)"
    )
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0
