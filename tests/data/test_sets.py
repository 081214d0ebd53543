"""Loaders on the real files where they are here, and on small files in the official formats."""

from __future__ import annotations

import gzip
import json
import shutil

import numpy as np
import pytest
import sklearn.datasets
import torch
from scipy.io import savemat

import parley.data as data
from parley.core.errors import InputError
from parley.data.formats import read_idx, read_json, read_lines, read_records
from parley.data.sets import embedded
from parley.data.sets.multinli import tokenise
from parley.data.sets.shakespeare import VOCABULARY, encode


def write_idx(file, array, kind):
    head = bytes([0, 0, kind, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    content = head + array.astype({8: ">u1", 12: ">i4", 13: ">f4"}[kind]).tobytes()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


@pytest.mark.parametrize("kind", [8, 12, 13])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_round_trip(tmp_path, kind, suffix):
    array = np.arange(24).reshape(2, 3, 4)
    write_idx(tmp_path / f"a{suffix}", array, kind)
    read = read_idx(tmp_path / f"a{suffix}")
    assert np.array_equal(read, array)
    assert read.dtype.isnative


def test_damaged_files_give_one_sentence(tmp_path):
    good = bytes([0, 0, 8, 1]) + np.array([5], ">i4").tobytes() + b"12345"
    packed = gzip.compress(good)
    cases = {
        "cut": good[:-1],
        "long": good + b"6",
        "head": b"\0\0",
        "other": b"<html></html>",
        "type": bytes([0, 0, 7, 1]) + good[4:],
        "dims": bytes([0, 0, 8, 200]) + good[4:],
        "cut.gz": packed[:-9],
        "bits.gz": packed[:12] + bytes([packed[12] ^ 255]) + packed[13:],
        "plain.gz": good,
        "empty.gz": b"",
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="not a whole idx file") as caught:
            read_idx(tmp_path / name)
        assert name in str(caught.value)
    with pytest.raises(InputError, match="not a whole JSON file"):
        read_json(tmp_path / "head")
    with pytest.raises(InputError, match="not a whole number of records"):
        read_records(tmp_path / "cut", 1, 3072)
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not a whole text file"):
        read_lines(tmp_path / "latin")


@pytest.mark.parametrize("name", ["digits", "iris", "wine", "breast-cancer", "diabetes"])
def test_embedded_sets_are_standardised_by_their_training_part(name):
    loaded = data.load(name)
    axes = tuple(range(loaded.x.ndim)) if loaded.x.ndim > 2 else (0,)
    assert torch.allclose(loaded.x.mean(axes), torch.zeros(()), atol=1e-5)
    assert torch.allclose(loaded.x.std(axes, correction=0), torch.ones(()), atol=1e-4)
    assert loaded.info.shape == tuple(loaded.x.shape[1:])
    assert round(0.2 * (len(loaded) + len(loaded.test))) == len(loaded.test)
    if loaded.info.kind == "classification":
        assert loaded.y.unique().tolist() == list(range(loaded.info.outputs)) == list(range(len(loaded.info.classes)))
    whole = data.load(name, test_fraction=0.0)
    assert whole.test is None
    assert len(whole) == len(loaded) + len(loaded.test)


def test_digits_are_pictures():
    assert data.digits().info.shape == (1, 8, 8)
    assert data.digits().x.dtype == torch.float32


def test_unknown_names_and_options_get_a_hint():
    with pytest.raises(InputError, match="did you mean 'fashion-mnist'"):
        data.load("fashion_mnist")
    with pytest.raises(InputError, match="did you mean 'test_fraction'"):
        data.load("digits", test_fracton=0.1)
    with pytest.raises(InputError, match="below 1"):
        data.digits(test_fraction=1.0)


@pytest.mark.parametrize(
    ("real", "name", "mean", "std"),
    [("mnist", "mnist", 0.1307, 0.3081), ("fashion-mnist", "fashion-mnist", 0.2860, 0.3530)],
    indirect=["real"],
)
def test_real_mnist_family(real, name, mean, std):
    loaded = data.load(name)
    assert loaded.x.shape == (60_000, 1, 28, 28)
    assert loaded.test.x.shape == (10_000, 1, 28, 28)
    # A black pixel is (0 - mean)/std, with the well-known constants.
    assert loaded.x.min().item() == pytest.approx(-mean / std, abs=2e-3)
    assert loaded.x.max().item() == pytest.approx((1 - mean) / std, abs=2e-3)
    assert loaded.x.mean().item() == pytest.approx(0, abs=1e-4)
    counts = torch.bincount(loaded.y)
    assert counts.sum() == 60_000
    if name == "fashion-mnist":
        assert counts.tolist() == [6000] * 10
    else:
        assert loaded.y[:5].tolist() == [5, 0, 4, 1, 9]


@pytest.mark.parametrize("real", ["qmnist"], indirect=True)
def test_mnist_has_539_training_writers_and_others_for_the_test(real):
    loaded = data.mnist_writers()
    federation = loaded.split("natural")
    assert len(federation) == 539
    assert federation.sizes().sum() == 60_000
    strangers = data.mnist_writers(writers="test").split("natural")
    assert len(strangers) == 297
    assert strangers.sizes().sum() == 10_000
    assert not set(strangers.ids) & set(federation.ids)
    with pytest.raises(InputError, match="writers='train' or 'test'"):
        data.mnist_writers(writers="both")


@pytest.mark.parametrize("real", ["mnist"], indirect=True)
def test_a_damaged_mnist_file_names_both_checksums(real, cache):
    shutil.copytree(real / "mnist", cache / "mnist")
    file = cache / "mnist/t10k-labels-idx1-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"expected ec29112dd5afa0611ce80d1b7f02629c.*parley data fetch mnist"):
        data.mnist()
    with pytest.raises(InputError, match="not a whole idx file"):
        data.mnist(verify=False)


@pytest.mark.parametrize("real", ["cifar-10-batches-bin"], indirect=True)
def test_real_cifar10(real):
    loaded = data.cifar10()
    assert loaded.x.shape == (50_000, 3, 32, 32)
    assert torch.bincount(loaded.y).tolist() == [5000] * 10
    # The known channel means and deviations of the training set.
    low = loaded.x.amin((0, 2, 3))
    assert torch.allclose(
        low, -torch.tensor([0.4914, 0.4822, 0.4465]) / torch.tensor([0.2470, 0.2435, 0.2616]), atol=3e-3
    )
    assert loaded.info.classes[loaded.y[0]] == "frog"


def write_cifar(folder, name, records):
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"".join(bytes(head) + pixels.astype(np.uint8).tobytes() for head, pixels in records))


def test_cifar100_in_the_official_format(cache):
    folder = cache / "cifar-100-binary"
    ramp = np.arange(3072) % 251
    write_cifar(folder, "train.bin", [((1, 7), ramp), ((19, 99), ramp[::-1])])
    write_cifar(folder, "test.bin", [((1, 7), ramp)])
    (folder / "fine_label_names.txt").write_text("\n".join(f"class{i}" for i in range(100)) + "\n\n")
    loaded = data.cifar100()
    assert loaded.y.tolist() == [7, 99]
    assert loaded.coarse.tolist() == [1, 19]
    assert loaded.info.classes[7] == "class7"
    red = loaded.x[0, 0].flatten()
    scale = (red[1] - red[0]).item()
    assert torch.allclose(red - red[0], torch.from_numpy(ramp[:1024] - ramp[0]).float() * scale, atol=1e-4)
    (folder / "fine_label_names.txt").write_text("one\n")
    with pytest.raises(InputError, match="1 names instead of 100"):
        data.cifar100()
    write_cifar(folder, "train.bin", [((1,), ramp)])
    with pytest.raises(InputError, match="not a whole number of records"):
        data.cifar100()


def test_cifar10_checks_sums_unless_told_not_to(cache):
    folder = cache / "cifar-10-batches-bin"
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        write_cifar(folder, name, [((i,), np.full(3072, i)) for i in range(10)])
    with pytest.raises(InputError, match="expected aadd24acce27caa71bf4b10992e9e7b2d74c2540"):
        data.cifar10()
    assert data.cifar10(verify=False).y.tolist() == list(range(10)) * 5


def test_svhn_in_the_official_format(cache):
    (cache / "svhn").mkdir()
    pixels = np.arange(2 * 3072).reshape(32, 32, 3, 2) % 256
    for part in ("train", "test"):
        savemat(cache / f"svhn/{part}_32x32.mat", {"X": pixels.astype(np.uint8), "y": np.array([[10], [3]], np.uint8)})
    loaded = data.svhn(verify=False)
    assert loaded.x.shape == (2, 3, 32, 32)
    assert loaded.y.tolist() == [0, 3]
    flat = torch.from_numpy(pixels.astype(np.float32))
    green = flat[:, :, 1, 0]
    ours = loaded.x[0, 1]
    assert torch.corrcoef(torch.stack([green.flatten(), ours.flatten()]))[0, 1] > 0.9999
    with pytest.raises(InputError, match="expected e26dedcc434d2e4c54c9b2d4a06d8373"):
        data.svhn()
    for damage in (b"nonsense" * 40, (cache / "svhn/train_32x32.mat").read_bytes()[:3000]):
        (cache / "svhn/train_32x32.mat").write_bytes(damage)
        with pytest.raises(InputError, match="not a whole MATLAB file"):
            data.svhn(verify=False)


def test_emnist_is_turned_upright(cache):
    upright = np.zeros((3, 28, 28), np.uint8)
    upright[:, 0, :] = 255  # a bar at the top
    for part in ("train", "test"):
        stem = cache / f"emnist/emnist-letters-{part}"
        write_idx(stem.with_name(f"{stem.name}-images-idx3-ubyte.gz"), upright.transpose(0, 2, 1), 8)
        write_idx(stem.with_name(f"{stem.name}-labels-idx1-ubyte.gz"), np.array([1, 26, 5]), 8)
    loaded = data.emnist_letters()
    assert loaded.y.tolist() == [0, 25, 4]
    assert loaded.info.classes[25] == "z"
    assert (loaded.x[0, 0, 0] > 0).all()
    assert (loaded.x[0, 0, 1:] < 0).all()
    with pytest.raises(InputError, match="parley data fetch emnist-digits"):
        data.emnist_digits()
    write_idx(cache / "emnist/emnist-letters-train-labels-idx1-ubyte.gz", np.array([1, 27, 5]), 8)
    with pytest.raises(InputError, match="label outside 0 to 25"):
        data.emnist_letters()
    write_idx(cache / "emnist/emnist-letters-train-labels-idx1-ubyte.gz", np.array([1, 2]), 8)
    with pytest.raises(InputError, match="3 training images but 2 labels"):
        data.emnist_letters()


def write_leaf(folder, users):
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (folder / "all_data_0_niid_0_keep_0.json").write_text(json.dumps(content))


def test_femnist_from_leaf(cache):
    picture = [i / 783 for i in range(784)]
    write_leaf(cache / "femnist/train", {"f2": ([picture, picture], [0, 61]), "f1": ([picture], [10])})
    write_leaf(cache / "femnist/test", {"f1": ([picture], [36])})
    federation = data.femnist().split("natural")
    assert tuple(federation.ids) == ("f1", "f2")
    assert federation.client("f2").y.tolist() == [0, 61]
    assert federation.client_test("f1").y.tolist() == [36]
    assert [federation.info.classes[i] for i in (0, 10, 36)] == ["0", "A", "a"]
    assert (federation.client("f1").x.flatten().diff() > 0).all()


def test_femnist_before_leafs_own_split(cache):
    write_leaf(cache / "femnist/all_data", {"f1": ([[0.0] * 783 + [1.0]], [3])})
    loaded = data.femnist()
    assert loaded.test is None
    assert loaded.group_names == ("f1",)
    assert [file.name for file in data.datasets["femnist"].fetch()] == ["all_data_0_niid_0_keep_0.json"]
    write_leaf(cache / "femnist/all_data", {"f1": ([[0.0] * 5], [3])})
    with pytest.raises(InputError, match="not a whole LEAF file"):
        data.femnist()
    write_leaf(cache / "femnist/all_data", {"f1": ([], [3])})
    with pytest.raises(InputError, match="0 inputs but 1 targets"):
        data.femnist()
    (cache / "femnist/all_data/all_data_0_niid_0_keep_0.json").unlink()
    with pytest.raises(InputError, match="no LEAF files"):
        data.femnist()


def test_shakespeare_from_leaf(cache):
    write_leaf(cache / "shakespeare/train", {"HAMLET": (["To be or not"[:10], "be or not t"[:10]], ["t", "o"])})
    write_leaf(cache / "shakespeare/test", {"HAMLET": (["that is th"], ["e"])})
    federation = data.shakespeare().split("natural")
    assert federation.info.shape == (10,)
    assert "".join(VOCABULARY[i] for i in federation.client("HAMLET").x[0]) == "To be or n"
    assert federation.client_test("HAMLET").y.tolist() == [VOCABULARY.index("e")]


def test_shakespeare_windows_do_not_cross_roles_or_the_test_border(cache):
    (cache / "shakespeare").mkdir()
    users = {"A": ["abcdefghij", "klmnopqrst"], "B": ["uvwxyzABCDEFGHIJKLMNO"], "SHORT": ["abc"]}
    (cache / "shakespeare/roles.json").write_text(json.dumps({"users": users}))
    loaded = data.shakespeare(length=3, stride=2, min_chars=10, test_fraction=0.3)
    assert loaded.group_names == ("A", "B")
    federation = loaded.split("natural")
    for name, text in (("A", "abcdefghij\nklmnopqrst"), ("B", users["B"][0])):
        border = round(0.7 * len(text))
        for part, piece in ((federation.client(name), text[:border]), (federation.client_test(name), text[border:])):
            found = ["".join(VOCABULARY[i] for i in [*x, y]) for x, y in zip(part.x, part.y, strict=True)]
            assert found == [piece[i : i + 4] for i in range(0, len(piece) - 3, 2)]
    with pytest.raises(InputError, match="lower min_chars"):
        data.shakespeare(min_chars=10_000)


def test_the_vocabulary_is_leafs():
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 80
    assert encode("a$b\u20ac").tolist() == [VOCABULARY.index("a"), VOCABULARY.index("b")]


@pytest.mark.parametrize("real", ["shakespeare/roles.json.gz"], indirect=True)
def test_real_shakespeare(real):
    loaded = data.shakespeare(stride=40)
    assert loaded.info.kind == "text"
    assert loaded.x.shape[1] == 80
    assert loaded.x.max() < 80
    assert len(loaded.group_names) > 600
    assert any(name.endswith("__HAMLET") for name in loaded.group_names)


@pytest.mark.parametrize("real", ["multinli/multinli_10k.tsv.gz"], indirect=True)
def test_real_multinli(real):
    loaded = data.multinli()
    assert len(loaded) + len(loaded.test) == 10_071
    federation = loaded.split("natural")
    assert len(federation) == 10
    assert "travel" in federation.ids
    assert loaded.x.max() < loaded.info.vocabulary == 8192
    # Exactly one separator unless the hypothesis is cut off before it.
    assert ((loaded.x == 1).sum(1) == 1).all()
    assert len(loaded.split(data.Natural(shards=5))) == 50


def test_multinli_official_files(cache):
    (cache / "multinli").mkdir()
    rows = [
        {"gold_label": "neutral", "genre": "slate", "sentence1": "It rains.", "sentence2": "It's wet"},
        {"gold_label": "-", "genre": "slate", "sentence1": "x", "sentence2": "y"},
        {"gold_label": "entailment", "genre": "travel", "sentence1": "a", "sentence2": "b"},
    ]
    (cache / "multinli/multinli_1.0_train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    header = list(rows[0])
    lines = ["\t".join(header), *("\t".join(row[h] for h in header) for row in rows)]
    (cache / "multinli/multinli_1.0_dev_matched.txt").write_text("\n".join(lines) + "\n")
    loaded = data.multinli(length=8, vocabulary=100)
    assert loaded.y.tolist() == [1, 0]
    assert loaded.group_names == ("slate", "travel")
    words = [tokenise(word, 100)[0] for word in ("it", "rains", ".", "it's", "wet")]
    assert loaded.x[0].tolist() == [*words[:3], 1, *words[3:], 0, 0]
    assert torch.equal(loaded.test.x, loaded.x)
    (cache / "multinli/multinli_1.0_train.jsonl").write_text('{"gold_label": "neutral"')
    with pytest.raises(InputError, match="not a whole MultiNLI file"):
        data.multinli()
    (cache / "multinli/multinli_1.0_train.jsonl").unlink()
    with pytest.raises(InputError, match="parley data fetch multinli"):
        data.multinli()


def write_hospitals(folder):
    """Ten patients a hospital, one of them with an empty cell; categories 1 to 3 and 0 to 1."""
    folder.mkdir()
    for k, name in enumerate(("cleveland", "hungarian", "switzerland", "va")):
        rows = [
            [50 + i + k, i % 2, 1 + i % 3, 120 + i, 200 + k, 0, i % 2, 150, 0, 1.5, "?", "?", "?", i % 3]
            for i in range(10)
        ]
        rows[-1][3] = "?"
        (folder / f"processed.{name}.data").write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")


def test_heart_disease_by_hospital(cache):
    write_hospitals(cache / "heart-disease")
    loaded = data.heart_disease()
    assert (len(loaded) + len(loaded.test), loaded.info.shape) == (36, (8 + 2 + 1,))
    federation = loaded.split("natural", seed=0)
    assert list(federation.ids) == ["cleveland", "hungarian", "switzerland", "va"]
    for client in federation.ids:
        x = federation.client(client).x
        assert torch.allclose(x.mean(0), torch.zeros(11), atol=1e-5)
        assert all(abs(float(one) - 1) < 1e-5 or float(one) < 1e-3 for one in x.std(0))
    pooled = data.heart_disease("pooled")
    assert torch.allclose(pooled.x.mean(0), torch.zeros(11), atol=1e-5)
    assert torch.equal(pooled.test.y, loaded.test.y)
    with pytest.raises(InputError, match="'hospital' or 'pooled'"):
        data.heart_disease("own")
    (cache / "heart-disease" / "processed.va.data").write_text("1,2,x\n")
    with pytest.raises(InputError, match="not a whole UCI file"):
        data.heart_disease()


@pytest.mark.parametrize("real", ["heart-disease"], indirect=True)
def test_heart_disease_has_flamby_s_split(real):
    loaded = data.heart_disease()
    assert np.bincount(loaded.groups).tolist() == [199, 172, 30, 85]
    assert np.bincount(loaded.test_groups).tolist() == [104, 89, 16, 45]
    assert loaded.info.shape == (13,)


@pytest.mark.parametrize("real", ["tcga-brca"], indirect=True)
def test_tcga_brca_has_flamby_s_split_and_signed_times(real):
    loaded = data.tcga_brca()
    assert np.bincount(loaded.groups).tolist() == [248, 156, 164, 129, 129, 40]
    assert np.bincount(loaded.test_groups).tolist() == [63, 40, 42, 33, 33, 11]
    assert [int((loaded.y[torch.from_numpy(loaded.groups == g)] > 0).sum()) for g in range(6)] == [45, 35, 14, 16, 7, 2]


def test_tcga_brca_in_flamby_s_files(cache):
    folder = cache / "tcga-brca"
    folder.mkdir()
    inputs = ",".join(f"c{i}" for i in range(39))
    rows = [f"p{i}," + ",".join(str((i + k) % 2) for k in range(39)) + f",{i % 2}.0,{10 * i}.0" for i in range(6)]
    (folder / "brca.csv").write_text(f"pid,{inputs},E,T\n" + "\n".join(rows) + "\n")
    folds = [f"p{i},{part},{part}_{i % 2}" for i, part in enumerate(["train"] * 4 + ["test"])]
    (folder / "train_test_split.csv").write_text("pid,fold,fold2\n" + "\n".join(folds) + "\n")
    loaded = data.tcga_brca()
    assert loaded.y.tolist() == [0, 10, -20, 30]
    assert (loaded.groups.tolist(), loaded.test.y.tolist(), loaded.test_groups.tolist()) == ([0, 1, 0, 1], [-40], [0])
    (folder / "brca.csv").write_text("pid,c0,E,T\np0,1,0,5\n")
    with pytest.raises(InputError, match="not a whole FLamby file"):
        data.tcga_brca()


@pytest.mark.parametrize("name", ["digits", "iris", "wine", "breast_cancer", "diabetes"])
def test_embedded_sets_are_what_scikit_learn_loads(name, monkeypatch: pytest.MonkeyPatch):
    """Bit for bit, before they are divided and standardised."""
    pooled = {}

    def keep(loader, x, y, kind, classes, test_fraction):
        pooled.update(x=x, y=y, classes=classes)

    monkeypatch.setattr(embedded, "_pooled", keep)
    getattr(data, name)()
    bunch = getattr(sklearn.datasets, f"load_{name}")()
    assert np.array_equal(pooled["x"].reshape(len(pooled["x"]), -1), bunch.data)
    assert np.array_equal(pooled["y"], bunch.target)
    assert list(pooled["classes"]) == [str(each) for each in getattr(bunch, "target_names", [])]
