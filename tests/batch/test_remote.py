"""Pictures behind URLs: an S3 server of moto's in this process, read as a real one is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto")
pytest.importorskip("pyarrow")

import boto3
from moto.server import ThreadedMotoServer

from minidnn.batch import predictor
from minidnn.batch.files import Found, RemoteFiles, remote_files
from minidnn.cli import main
from minidnn.errors import GraphError
from minidnn.pictures import PictureError
from tests.batch.pictures import Pictures, make_pictures

ODD = "a b/ö %20?#+&.png"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    made = make_pictures(tmp_path_factory.mktemp("pictures"), 12, 2, folders=3)
    (made.root / ODD).parent.mkdir()
    (made.root / ODD).write_bytes(Path(min(made.good)).read_bytes())
    (made.root / "00" / "notes.txt").write_text("no picture")
    (made.root / ".dark.png").write_bytes(b"")
    return Pictures(made.root, made.good | {str(made.root / ODD)}, made.bad)


@pytest.fixture(scope="module")
def bucket(pictures: Pictures) -> Iterator[Any]:
    """The same pictures in a bucket."""
    with pytest.MonkeyPatch.context() as patch:
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "NO_PROXY": host,
        }.items():
            patch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="pictures")
        for path in pictures.root.rglob("*"):
            if path.is_file():
                key = str(path.relative_to(pictures.root))
                client.upload_file(str(path), "pictures", f"all/{key}")
        remote_files.cache_clear()
        yield client
        client.close()
        server.stop()
    remote_files.cache_clear()


@pytest.fixture
def in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minidnn.batch.on_ray.started", nullcontext)
    monkeypatch.setattr(
        "minidnn.batch.on_ray.run_on_ray", lambda ray, resources, worker, parts: map(worker, parts)
    )


def batch(pattern: str, output: Path, *more: object) -> int:
    given = ("batch", "digits", "--input", pattern, "--output", output, "--format", "jsonl")
    return main([*map(str, given), "--device", "reference", "--part", "4", *map(str, more)])


def rows(output: Path) -> dict[str, dict[str, Any]]:
    lines = [
        json.loads(line)
        for part in sorted(output.glob("part-*.jsonl"))
        for line in part.read_text().splitlines()
    ]
    assert len({line["file"] for line in lines}) == len(lines)
    return {line["file"]: line for line in lines}


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize(
    "pattern", ["", "/", "/**", "/*/*.jpg", "/0[01]/*", "/**/*%20*", "/.*", "/00/notes.txt", "/*"]
)
def test_a_pattern_means_the_same_as_in_a_folder(pictures: Pictures, pattern: str) -> None:
    local, remote = Found(f"{pictures.root}{pattern}"), Found(f"s3://pictures/all{pattern}")
    expected = [os.path.relpath(each, pictures.root) for each in local]
    assert [each.removeprefix("s3://pictures/all/") for each in remote] == expected
    assert remote.left == local.left


@pytest.mark.usefixtures("in_a_loop", "bucket")
def test_predictions_are_those_of_a_folder(pictures: Pictures, tmp_path: Path) -> None:
    assert batch("s3://pictures/all/**", tmp_path / "remote") == 1
    assert batch(str(pictures.root), tmp_path / "local") == 1
    remote, local = rows(tmp_path / "remote"), rows(tmp_path / "local")
    assert set(local) == pictures.good
    for name, row in local.items():
        url = f"s3://pictures/all/{os.path.relpath(name, pictures.root)}"
        assert remote.pop(url) == {**row, "file": url}
    assert not remote
    bad = (tmp_path / "remote" / "bad.jsonl").read_text().splitlines()
    named = {json.loads(line)["file"].removeprefix("s3://pictures/all/") for line in bad}
    assert named == {os.path.relpath(each, pictures.root) for each in pictures.bad}


def test_pictures_that_go_away_are_bad(bucket: Any, tmp_path: Path) -> None:
    """They were listed, so that they are named, with the reason."""
    bucket.upload_file(__file__, "pictures", "going/a.png")
    (found,) = Found("s3://pictures/going/**")
    bucket.delete_object(Bucket="pictures", Key="going/a.png")
    reason = rf"^picture {found} cannot be read: No such file or directory$"
    with pytest.raises(PictureError, match=reason):
        remote_files("s3://pictures").read(found)


@pytest.mark.usefixtures("in_a_loop", "bucket")
def test_a_store_out_of_reach_says_nothing_of_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is complete stays, nothing is called bad, and the same command goes on."""
    real, calls = RemoteFiles.read, [0]

    def read(self: RemoteFiles, path: str) -> bytes:
        calls[0] += 1
        if calls[0] > 7:
            raise OSError("When reading: AWS Error NETWORK_CONNECTION")
        return real(self, path)

    monkeypatch.setattr(predictor.time, "sleep", lambda seconds: None)
    with monkeypatch.context() as cut:
        cut.setattr(RemoteFiles, "read", read)
        assert batch("s3://pictures/all/**", tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert "AWS Error NETWORK_CONNECTION; what is complete stays" in told and "s3://" in told
    assert len(rows(tmp_path / "out")) <= 4
    assert batch("s3://pictures/all/**", tmp_path / "out") == 1
    assert len(rows(tmp_path / "out")) == 11
    assert len((tmp_path / "out" / "bad.jsonl").read_text().splitlines()) == 2


@pytest.mark.full
@pytest.mark.usefixtures("in_a_loop", "bucket")
def test_a_server_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, by the network itself."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(predictor, "_ATTEMPTS", 1)
    files = RemoteFiles("s3://pictures")
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        files.read("s3://pictures/all/00/000000.png")
    with pytest.raises(GraphError, match="NETWORK_CONNECTION"):
        list(Found("s3://pictures2/all/**"))


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("zz://a/**", r"^--input zz://a: Unrecognized filesystem type in URI: zz://a/; valid are"),
        ("s3://key:secret@pictures/**", r"^--input s3://…@…: names would be written with"),
        ("s3://pictures/none", r"^--input s3://pictures/none: there is no such file or folder;"),
        (
            "s3://pictures/none/*.png",
            r"^--input: folder s3://pictures/none cannot be read: .*No such file",
        ),
        ("s3://nobody/*.png", r"^--input: folder s3://nobody/? cannot be read: .*NO_SUCH_BUCKET"),
    ],
)
def test_what_is_not_there_is_named(pattern: str, told: str) -> None:
    with pytest.raises(GraphError, match=told):
        list(Found(pattern))


@pytest.mark.usefixtures("bucket")
def test_pictures_too_large_to_fetch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minidnn.batch.files._MOST_BYTES", 10)
    with pytest.raises(PictureError, match=r"/notes.txt has 10 bytes|valid are at most 10$"):
        remote_files("s3://pictures").read("s3://pictures/all/00/000000.png")
    assert remote_files("s3://pictures").read("s3://pictures/all/00/notes.txt") == b"no picture"
