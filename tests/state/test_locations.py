"""One place, many spellings: found out once, and never a folder by mistake."""

from __future__ import annotations

import pickle
import sys

import pytest

from weir.errors import CheckpointError, ParameterError
from weir.state import location
from weir.state.location import resolve
from weir.state.storage import Storage


def test_a_relative_path_is_absolute_from_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = Storage("ckpt/")
    assert storage.location == f"{tmp_path}/ckpt"
    monkeypatch.chdir("/")  # an executor has a working directory of its own
    sent = pickle.loads(pickle.dumps(storage))
    sent.write("a/b", b"rows")
    assert (tmp_path / "ckpt/a/b").read_bytes() == b"rows"


def test_paths_and_file_uris_are_one_place(tmp_path):
    spaced = tmp_path / "a b"
    spellings = (
        str(spaced),
        spaced,
        spaced.as_uri(),
        f"file:{spaced}",
        f"file://localhost{spaced}/",
        f"{spaced}//.",
    )
    for spelling in spellings:
        storage = Storage(spelling)
        assert storage.location == str(spaced)
        assert storage.is_local


@pytest.mark.parametrize(
    ("spelling", "uri"),
    [
        ("s3://bucket/a", "s3://bucket/a"),
        ("s3a://bucket/a/", "s3a://bucket/a"),
        ("S3N://bucket//a//b", "s3n://bucket/a/b"),
        ("gs://bucket", "gs://bucket"),
        ("az://container/a b/100%", "az://container/a b/100%"),
        ("abfss://c@account.dfs.core.windows.net/a", "abfss://c@account.dfs.core.windows.net/a"),
        ("hdfs:/a/b", "hdfs:///a/b"),
        ("hdfs:///a/b/", "hdfs:///a/b"),
        ("hdfs://name:8020/a", "hdfs://name:8020/a"),
        ("viewfs://cluster/a", "viewfs://cluster/a"),
    ],
)
def test_uris_are_spelt_in_one_way(spelling, uri):
    assert resolve(spelling).uri == uri
    assert resolve(resolve(spelling).uri) == resolve(spelling)


@pytest.mark.parametrize(
    ("spelling", "says"),
    [
        ("s3:/bucket/a", r"names no bucket. Write s3://bucket/folder"),
        ("s3://", "names no bucket"),
        ("s3:///a", "names no bucket"),
        ("s3://bucket/a?endpoint_override=x", "storage_options"),
        ("s4://bucket/a", "s4:// cannot be opened here"),
        ("hfds:/a", "hfds:// cannot be opened here"),
        ("ckpt:new", r"no scheme that Weir knows. For a folder of that name write \./ckpt:new"),
        ("file:ckpt", "not an absolute path"),
        ("file://other/a", "names the host 'other'"),
        ("C:\\ckpt", "a path of Windows"),
        ("D:/ckpt", "a path of Windows"),
        ("", "expected a folder or a URI"),
    ],
)
def test_a_mistake_is_named_and_makes_no_folder(spelling, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=says):
        Storage(spelling)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_a_colon_can_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Storage("./ckpt:new").location == f"{tmp_path}/ckpt:new"


def test_dbfs_is_its_folder_or_an_error(tmp_path, monkeypatch):
    with pytest.raises(
        CheckpointError, match=r"dbfs:/x: this machine does not show DBFS as a folder .* use a volume"
    ):
        Storage("dbfs:/x")
    monkeypatch.setattr(location, "DBFS", str(tmp_path))
    for spelling in ("dbfs:/x/y", "dbfs:///x/y/"):
        assert Storage(spelling).location == f"{tmp_path}/x/y"


def test_hdfs_without_its_client_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "weir.state.hdfs_files", None)
    with pytest.raises(CheckpointError, match=r"hdfs:///a: needs hdfs-native.* 'weir-streams\[hdfs\]'"):
        Storage("hdfs:/a")


def test_hdfs_without_a_name_node_says_so(monkeypatch):
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    with pytest.raises(CheckpointError, match="hdfs:///a: cannot be opened here .* or set HADOOP_CONF_DIR"):
        Storage("hdfs:/a")


def test_options_are_for_object_stores(tmp_path):
    with pytest.raises(ParameterError, match="storage options are for object stores"):
        Storage(tmp_path, {"region": "eu-west-1"})
    with pytest.raises(ParameterError, match="expected a dict"):
        Storage("s3://bucket/a", "region=eu-west-1")
    with pytest.raises(
        ParameterError, match="'region': expected a name with a text or a number, not a NoneType"
    ):
        Storage("s3://bucket/a", {"region": None})
