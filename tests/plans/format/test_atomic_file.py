"""Atomic writes: the old content or the new one, never a part, and no litter."""

import errno
import os
import stat
from pathlib import Path

import pytest

from seqplan.plans.format.atomic_file import atomic_write


def test_text_and_bytes(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a.txt") as text:
        text.write("Größe\n")
    with atomic_write(tmp_path / "a.bin", "wb") as binary:
        binary.write(b"\x00\xff")
    assert (tmp_path / "a.txt").read_bytes() == "Größe\n".encode()
    assert (tmp_path / "a.bin").read_bytes() == b"\x00\xff"
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "a.txt"]


def test_nothing_is_visible_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with atomic_write(path) as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, OSError])
def test_an_exception_leaves_the_old_content_and_no_temporary(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def write() -> None:
        with atomic_write(path) as file:
            file.write("half")
            raise kind

    with pytest.raises(kind):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_signal_that_comes_as_the_temporary_is_made_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler runs when the call returns: the file exists, unregistered."""
    plain_open = os.open

    def interrupted(*arguments: object) -> int:
        plain_open(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _write(tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_names_the_file_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "lengths.npy"
    with pytest.raises(OSError, match=r"No space left on device: '.*lengths\.npy'"):
        _write(path)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_files_that_are_not_regular_are_written_directly() -> None:
    with atomic_write("/dev/null") as file:
        file.write("gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        _write(Path("/dev/full"))


@pytest.mark.skipif(os.name != "posix", reason="mode bits")
def test_mode_bits(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        _write(tmp_path / "new")
        (tmp_path / "kept").touch()
        (tmp_path / "kept").chmod(0o600)
        _write(tmp_path / "kept")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o600


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    _write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "x"


def test_a_missing_folder_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none/a'"):
        _write(tmp_path / "none" / "a")
    with pytest.raises(IsADirectoryError):
        _write(tmp_path)


def test_an_unknown_mode_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'r'"):
        atomic_write(tmp_path / "a", "r")  # type: ignore[call-overload]


def _write(path: Path) -> None:
    with atomic_write(path) as file:
        file.write("x")
