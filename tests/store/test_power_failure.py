"""The power fails while a run trains on a disk of its own: what was committed is there, and the run goes on exactly.

A file in a loop device is an ext4 file system; an ioctl stops it at once, with everything that was not flushed lost.
"""

import fcntl
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125  # _IOR('X', 125, __u32), EXT4_IOC_SHUTDOWN
HOW = {"with its journal": 1, "without its journal": 2}
CHILD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("conftest", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

class Tell(module.Listener):
    def round(self, record):
        print(record.number, flush=True)

module.Lab(rounds=int(sys.argv[4])).train(sys.argv[2], module.Path(sys.argv[3]), listeners=[Tell()])
"""


def call(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


@contextmanager
def mounted(image: Path, place: Path) -> Iterator[None]:
    call("mount", "-o", "loop", image, place)
    try:
        yield
    finally:
        for _ in range(50):  # whoever was killed may still be letting go
            if subprocess.run(["umount", str(place)], check=False, capture_output=True).returncode == 0:
                break
            time.sleep(0.1)


@pytest.fixture
def disk(tmp_path: Path) -> tuple[Path, Path]:
    """An image of a disk and the folder it is mounted on."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    try:
        call("truncate", "-s", "64M", image)
        call("mkfs.ext4", "-q", "-F", image)
        with mounted(image, place):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine allows no loop mounts of ext4 ({error})")
    return image, place


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("method", ["fedadam", "local-only", "scaffold", "fedals"])
def test_the_power_fails(lab, disk: tuple[Path, Path], tmp_path: Path, method: str, how: str, seed: int):
    image, place = disk
    chance = random.Random(f"{method} {how} {seed}")
    lab = type(lab)(rounds=40)
    with mounted(image, place):
        conftest = Path(__file__).with_name("conftest.py")
        command = [sys.executable, "-c", CHILD, conftest, method, place / "runs" / "runs.db", lab.rounds]
        with subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        ) as child:
            assert child.stdout is not None
            last = chance.randrange(2, 30)
            while (line := child.stdout.readline()) and int(line) < last:
                pass
            time.sleep(chance.uniform(0.0, 0.05))
            descriptor = os.open(place, os.O_RDONLY)
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", HOW[how]))
            os.close(descriptor)
            child.kill()
        assert line, "the run ended before the power failed"
    with mounted(image, place):
        shutil.copytree(place / "runs", tmp_path / "runs")
    assert lab.resume(method, tmp_path / "runs" / "runs.db") == lab.whole(method)
