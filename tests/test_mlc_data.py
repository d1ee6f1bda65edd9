"""Multi-label data: the real sets against their published counts, and what is done to features and rows."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from committed import ROOT, committed, data_of
from datamodules.errors import DataMismatch, DataNotFound, FormatError
from datamodules.generated import GeneratedData
from datamodules.mlc import MultiLabelData
from datamodules.readers.arff_header import Attribute
from datamodules.readers.encode import ENCODINGS, Filler
from datamodules.sources.registry import data_sets
from datamodules.splits import by_folds, read_fold_table
from make_mlc import clus_arff, dense_arff, sparse_arff

NAN = float("nan")
CONF = ROOT / "conf" / "data"

# rows of train, validation and test; features; labels; labels a row over all rows
COUNTS = {
    "bibtex": ((4427, 1491, 1477), 1836, 159, 2.402),
    "bibtex_mulan": ((3904, 976, 2515), 1836, 159, 2.402),
    "delicious": ((9668, 3213, 3210), 500, 983, 19.020 * 16105 / 16091),
    "genbase": ((398, 132, 132), 1186, 27, 1.252),
    "genbase_clean": ((398, 132, 132), 1185, 27, 1.252),
    "cal500": ((301, 100, 101), 68, 174, 26.044),
    "spo_fun": ((1600, 837, 1266), 86, 500, 9.778),
    "expr_fun": ((1639, 849, 1291), 561, 500, 9.736),
    "yeast": ((1200, 300, 917), 103, 14, 4.237),
    "scene": ((969, 242, 1196), 294, 6, 1.074),
    "emotions": ((313, 78, 202), 72, 6, 1.868),
    "enron": ((898, 225, 579), 1001, 53, 3.378),
}


def configured(name: str, **changes: object) -> MultiLabelData:
    """The data of conf/data/<name>.yaml; skips the test when its files are not there."""
    described = data_of(CONF / f"{name}.yaml")
    assert described["class_path"] == "datamodules.mlc.MultiLabelData"
    data = MultiLabelData(**(described["init_args"] | {"seed": 0} | changes))
    if reason := data.missing():
        pytest.skip(reason)
    return data


def everything(data: MultiLabelData) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [data.splits[part] for part in ("train", "validation", "test")]
    return torch.cat([part.inputs for part in parts]), torch.cat([part.y for part in parts])


@pytest.mark.parametrize("name", COUNTS)
def test_a_real_set_has_its_published_counts(name: str) -> None:
    rows, num_features, num_labels, cardinality = COUNTS[name]
    data = configured(name)
    data.setup()
    x, y = everything(data)
    assert tuple(len(split.inputs) for split in data.splits.values()) == rows
    assert (x.shape[1], y.shape[1]) == (num_features, num_labels)
    assert (x.dtype, y.dtype) == (torch.float32, torch.uint8)
    assert float(y.sum(1).float().mean()) == pytest.approx(cardinality, abs=6e-4)
    assert y.any(1).all() and torch.isfinite(x).all()
    assert all(len(checksum) == 64 for checksum in data.checksums.values()) and data.checksums


def test_every_file_of_conf_names_a_known_set_and_follows_the_seed() -> None:
    for path in committed("conf/data/*.yaml"):
        described = data_of(ROOT / path)
        own = {"num_features": 1} if path.stem == "arff" else {}  # which a user gives
        own |= {"num_labels": 1} if path.stem in ("arff", "own_text") else {}
        counts = ("num_tags", "num_words", "num_vectors", "num_characters")
        own |= {"tags": ["O"]} | dict.fromkeys(counts, 1) if path.stem in ("own_tagged", "own_spans") else {}
        arguments = described["init_args"] | own
        own_kinds = ("arff", "folder", "own_", "generated", "known_", "ocr", "conll2003", "srl")
        known = {*own_kinds, *data_sets()}
        assert arguments.get("name") in known or any(path.stem.startswith(name) for name in known)
        seeds = [key for key, value in arguments.items() if value == "${seed_everything}"]
        assert "seed" in seeds
        module, _, name = described["class_path"].rpartition(".")
        data = getattr(import_module(module), name)(**arguments | dict.fromkeys(seeds, 3))
        sizes = {argument for argument in arguments if argument.startswith("num_") or argument == "size"}
        assert sizes and all(getattr(data, size) == arguments[size] for size in sizes)


def test_genbase_as_released_has_the_identifier_and_yes_as_zero() -> None:
    released, cleaned = configured("genbase"), configured("genbase_clean")
    released.setup()
    cleaned.setup()
    x, clean = released.splits["train"].inputs, cleaned.splits["train"].inputs
    assert torch.equal(x[:, 0], x[:, 0].unique())  # rows are in the order of their identifiers
    assert float(x[:, 0].max()) == 661
    assert torch.equal(x[:, 1:], 1 - clean)
    assert float(clean.mean()) < 0.01


def test_all_classes_of_spo_fun_occur_and_the_root_can_be_dropped() -> None:
    data = configured("spo_fun")
    data.setup()
    y = everything(data)[1]
    assert y.any(0).all() and y[:, 0].all()
    without = configured("spo_fun", keep_root=False, num_labels=499)
    without.setup()
    assert torch.equal(everything(without)[1], y[:, 1:])


@pytest.mark.parametrize("scale", ["all", "train"])
def test_cal500_is_scaled_on_the_rows_that_were_chosen(scale: str) -> None:
    raw, scaled = configured("cal500", scale="none"), configured("cal500", scale=scale)
    raw.setup()
    scaled.setup()
    fitted = everything(raw)[0] if scale == "all" else raw.splits["train"].inputs
    low, high = fitted.min(0).values, fitted.max(0).values
    wanted = (raw.splits["test"].inputs - low) / (high - low)
    torch.testing.assert_close(scaled.splits["test"].inputs, wanted, rtol=0, atol=1e-5)
    rows = everything(scaled)[0] if scale == "all" else scaled.splits["train"].inputs
    assert (float(rows.min()), float(rows.max())) == (0, 1)


def test_a_set_that_a_user_has_to_bring_says_which_file(tmp_path: Path) -> None:
    for name, file in (("eurlexev", "eurlex-ev.arff"), ("bookmarks", "bookmarks.arff")):
        data = MultiLabelData(1, 1, name=name, folder=str(tmp_path), mirror="")
        reason = data.missing()
        assert reason is not None
        for part in (file, data_sets()[name].files["train"].sha256, str(Path(tmp_path.name, name)), "http"):
            assert part in reason
        with pytest.raises(DataNotFound, match=file):
            data.setup()


def test_missing_cells_get_the_mean_of_the_fitted_rows() -> None:
    fill = Filler(np.array([[1, NAN], [3, 5], [NAN, 5]], np.float32))
    np.testing.assert_array_equal(fill(np.array([[NAN, NAN], [9, 9]], np.float32)), [[2, 5], [9, 9]])


def test_scaling_comes_after_filling_and_leaves_constants_alone() -> None:
    fitted = np.array([[0, 7, NAN], [4, 7, NAN]], np.float32)
    fill = Filler(fitted, scale="range")
    np.testing.assert_array_equal(
        fill(np.array([[NAN, 7, NAN], [8, 6, 2]], np.float32)), [[0.5, 7, 0], [2, 6, 2]]
    )


def test_standard_columns_have_mean_0_and_variance_1_over_what_is_present() -> None:
    fitted = np.array([[1, 7, NAN], [3, 7, NAN], [NAN, 7, NAN], [5, 7, NAN]], np.float32)
    fill = Filler(fitted, scale="standard")
    unit = np.sqrt(8 / 3)
    found = fill(np.array([[NAN, 7, NAN], [5, 6, 2]], np.float32))
    np.testing.assert_allclose(found, [[0, 7, 0], [2 / unit, 6, 2]], rtol=1e-6)


@pytest.mark.parametrize("scale", ["standard_all", "standard_train"])
def test_spo_fun_is_standardised_on_the_rows_that_were_chosen(scale: str) -> None:
    raw, scaled = configured("spo_fun", scale="none"), configured("spo_fun", scale=scale)
    raw.setup()
    scaled.setup()
    rows = everything(scaled)[0] if scale == "standard_all" else scaled.splits["train"].inputs
    varies = rows.std(0) > 0
    assert rows[:, varies].mean(0).abs().max() < 1e-4
    assert rows[:, varies].var(0, correction=0).max() < 1.001
    assert not torch.equal(raw.splits["test"].inputs, scaled.splits["test"].inputs)


def test_sparse_features_are_filled_and_scaled_as_dense_ones() -> None:
    draw = np.random.default_rng(0)
    x = (draw.normal(size=(30, 6)) * (draw.random((30, 6)) < 0.4)).astype(np.float32)
    x[:, 5] = 0
    for missing in (False, True):
        if missing:
            x[3, 2] = NAN
        ours, theirs = Filler(csr_array(x), scale="range"), Filler(x, scale="range")
        np.testing.assert_allclose(ours(csr_array(x)), theirs(x.copy()), rtol=1e-6)


def test_encodings_turn_nominal_values_into_numbers() -> None:
    features = (
        Attribute("id", ("a", "b", "c")),
        Attribute("motif", ("YES", "NO")),
        Attribute("bit", ("0", "1")),
        Attribute("colour", ("red", "green", "blue")),
        Attribute("size"),
    )
    x = np.array([[0, 0, 1, 2, 0.5], [1, 1, 0, NAN, 2], [2, NAN, 0, 2, 3]], np.float32)
    np.testing.assert_array_equal(ENCODINGS["released"](x, features, 3), x)
    np.testing.assert_array_equal(
        ENCODINGS["clean"](x, features, 3),
        [[1, 1, 0, 0, 1, 0.5], [0, 0, NAN, NAN, NAN, 2], [NAN, 0, 0, 0, 1, 3]],
    )
    one_hot = ENCODINGS["one_hot"](csr_array(x), features, 3)
    assert one_hot.shape == (3, 3 + 2 + 2 + 3 + 1)
    np.testing.assert_array_equal(one_hot[0], [1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0.5])


def test_six_folds_train_two_validate_and_two_test() -> None:
    rows = by_folds(np.arange(20) % 10 + 1)
    assert rows["train"].tolist() == [*range(6), *range(10, 16)]
    assert rows["validation"].tolist() == [6, 7, 16, 17]
    assert rows["test"].tolist() == [8, 9, 18, 19]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("a.arff,0,1\na.arff,9,1\n", r"line 3: 'a\.arff,9,1' is no row"),
        ("a.arff,0,1\na.arff,1,2\na.arff,0,3\n", r"line 4: row 0 of a\.arff is listed twice"),
        ("a.arff,0,1\na.arff,0_1,2\n", r"line 3: 'a\.arff,0_1,2' is no row"),
        ("a.arff,0,1\na.arff,1," + "9" * 200_000 + "\n", r"line 3: 'a\.arff,1,9{31}\.\.\.' is no row"),
        ("a.arff,0,1\n\xff,1,2\n", "line 3: .* is no row"),
        ("b.arff,0,1\n", "line 2"),
        ("a.arff,x,1\n", "line 2"),
        ("a.arff\n", "line 2"),
        ("a.arff,0,1\n", r"does not put every row .*: row 1 of a\.arff is not there"),
        ("a.arff,0,1\na.arff,1,11\n", "line 3: .* its fold, 1 to 10"),
    ],
)
def test_a_table_of_folds_that_does_not_fit_is_refused(table: str, says: str) -> None:
    with pytest.raises(DataMismatch, match=says):
        read_fold_table(f"file,row,fold\n{table}".encode("latin-1"), {"a.arff": 2}, "folds")


def test_a_table_of_folds_without_its_header_is_refused() -> None:
    with pytest.raises(FormatError, match=r"line 1: 'a\.arff,0,1' has to be the header file,row,fold"):
        read_fold_table(b"a.arff,0,1\na.arff,1,1\n", {"a.arff": 2}, "folds")


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_files_of_a_user_need_no_code(tmp_path: Path) -> None:
    train = write(tmp_path / "my-train.arff", sparse_arff(40, 9, 3, words=4))
    test = write(tmp_path / "my-test.arff", sparse_arff(10, 9, 3, words=4, seed=1))
    data = MultiLabelData(9, 3, train=train, test=test)
    assert data.missing() is None
    data.setup()
    assert [len(split.inputs) for split in data.splits.values()] == [32, 8, 10]
    assert set(data.checksums) == {train, test}


def test_one_file_of_a_user_is_split_by_its_own_seed_not_by_the_run(tmp_path: Path) -> None:
    train = write(tmp_path / "all.arff", sparse_arff(50, 9, 3, words=4))

    def drawn(**seeds: int) -> torch.Tensor:
        data = MultiLabelData(9, 3, train=train, **seeds)
        data.setup()
        assert [len(split.inputs) for split in data.splits.values()] == [30, 10, 10]
        return data.splits["test"].inputs

    assert torch.equal(drawn(seed=0), drawn(seed=1))
    assert not torch.equal(drawn(split_seed=0), drawn(split_seed=1))


def test_sizes_that_differ_from_the_files_are_named(tmp_path: Path) -> None:
    train = write(tmp_path / "a.arff", sparse_arff(20, 9, 3, words=4))
    says = (
        r"has 12 attributes, of which 3 are labels .* make 9 features .* says 0\. "
        r"Set --data\.num_features 9; if some of these"
    )
    with pytest.raises(DataMismatch, match=says):
        MultiLabelData(num_labels=3, train=train).setup()


@pytest.mark.parametrize("sizes", [{"num_labels": 13}, {"num_features": 104, "num_labels": 13}])
def test_no_label_of_a_published_set_is_taken_for_a_feature(sizes: dict[str, int]) -> None:
    data = configured("yeast", **sizes)
    says = r"yeast has 103 features .* and 14 labels, .*--data\.num_features 103 --data\.num_labels 14\."
    with pytest.raises(DataMismatch, match=says):
        data.setup()


def test_the_registry_has_the_numbers_of_labels_of_the_configurations() -> None:
    described = [data_of(ROOT / path)["init_args"] for path in committed("conf/data/*.yaml")]
    given = {
        d["name"]: d["num_labels"] for d in described if d.get("name") in data_sets() and "num_labels" in d
    }
    known = {name: data.num_labels for name, data in data_sets().items() if data.num_labels}
    assert len(known) == 11 and known.items() <= given.items()


def test_rows_without_a_label_are_dropped_everywhere(tmp_path: Path) -> None:
    y = np.ones((30, 2))
    y[::3] = 0
    data = MultiLabelData(1, 2, train=write(tmp_path / "a.arff", dense_arff(np.arange(30.0)[:, None], y)))
    with pytest.warns(UserWarning, match="rows of train have no label and are left out"):
        data.setup()
    kept = everything(data)[0].ravel()
    assert sorted(kept.int().tolist()) == [i for i in range(30) if i % 3]


def test_files_without_a_single_label_are_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "a.arff", dense_arff(np.ones((9, 1)), np.zeros((9, 2))))
    with pytest.raises(DataMismatch, match="No row is left for train"):
        MultiLabelData(1, 2, train=train, scale="train").setup()


def test_one_file_for_two_parts_is_refused(tmp_path: Path) -> None:
    one, two = (write(tmp_path / name, sparse_arff(20, 9, 3, words=4)) for name in ("a.arff", "b.arff"))
    with pytest.raises(DataMismatch, match="Two of train, validation, test have one file"):
        MultiLabelData(9, 3, train=one, validation=two, test=two).setup()


def test_parts_with_different_headers_are_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "a.arff", sparse_arff(20, 9, 3, words=4))
    test = write(tmp_path / "b.arff", sparse_arff(20, 10, 3, words=4))
    with pytest.raises(DataMismatch, match=r"a\.arff and .*b\.arff declare different attributes"):
        MultiLabelData(9, 3, train=train, test=test).setup()


def test_a_dense_and_a_sparse_part_fit_together(tmp_path: Path) -> None:
    x = np.array([[0.0, 1.0], [2.0, 0.0], [0.5, 0.5], [3.0, 1.0], [1.0, 1.0]])
    header = dense_arff(x, np.ones((5, 1))).partition("@data")[0]
    train = write(tmp_path / "a.arff", dense_arff(x, np.ones((5, 1))))
    test = write(tmp_path / "b.arff", header + "@data\n{0 2, 2 1}\n")
    data = MultiLabelData(2, 1, train=train, test=test)
    data.setup()
    assert data.splits["test"].inputs.tolist() == [[2, 0]]


def test_paths_that_are_wrong_are_told_without_reading_anything(tmp_path: Path) -> None:
    there = write(tmp_path / "a.arff", "")
    for arguments, says in [
        ({}, "No data is named"),
        ({"train": "nowhere.arff"}, r"no file nowhere\.arff \(--data\.train\)"),
        ({"train": there, "test": "nowhere.arff"}, r"--data\.test"),
        ({"test": there}, "needs --data.train"),
        ({"fold_folder": str(tmp_path)}, "fold 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 is not there"),
        ({"name": "bibtx"}, "Did you mean bibtex"),
    ]:
        data = MultiLabelData(1, 1, **arguments)
        assert data.missing()
        with pytest.raises(DataNotFound, match=says):
            data.setup()


def test_the_ten_fold_files_of_kdis_are_taken_from_a_folder(tmp_path: Path) -> None:
    for fold in range(1, 11):
        x, y = np.full((2, 1), float(fold)), np.ones((2, 1))
        text = dense_arff(x, y, relation="Bibtex: -C 1", labels_first=True)
        write(tmp_path / f"Bibtex-fold{fold}.arff", text)
    data = MultiLabelData(1, 1, fold_folder=str(tmp_path))
    assert data.missing() is None
    data.setup()
    found = {part: sorted(set(split.inputs.ravel().tolist())) for part, split in data.splits.items()}
    assert found == {"train": [1, 2, 3, 4, 5, 6], "validation": [7, 8], "test": [9, 10]}
    write(tmp_path / "copy-of-fold10.arff", "")
    assert "too many: Bibtex-fold10.arff, copy-of-fold10.arff" in str(data.missing())


def test_a_set_without_folds_says_how_to_split_it(tmp_path: Path) -> None:
    train = write(tmp_path / "a.arff", sparse_arff(20, 9, 3, words=4))
    with pytest.raises(DataNotFound, match="Set split: files"):
        MultiLabelData(9, 3, train=train, split="folds10").setup()


def test_a_hierarchy_of_a_user_needs_no_number_of_labels_to_be_read(tmp_path: Path) -> None:
    train = write(tmp_path / "a.arff", clus_arff(np.ones((10, 1)), ["01/02"] * 10, "01,01/02"))
    with pytest.raises(DataMismatch, match=r"1 features .* and 3 labels"):
        MultiLabelData(train=train).setup()


def test_generated_data_is_the_same_each_time_and_says_its_name() -> None:
    one, two = GeneratedData(), GeneratedData(seed=5)
    assert one.missing() is None
    one.setup()
    two.setup()
    assert torch.equal(one.splits["train"].inputs, two.splits["train"].inputs)
    assert torch.equal(one.splits["test"].y, two.splits["test"].y)
    with pytest.raises(ValueError, match="generated"):
        GeneratedData(name="yeast")


def test_generated_labels_depend_on_each_other_beyond_their_inputs() -> None:
    data = GeneratedData(num_rows=4000)
    data.setup()
    y = torch.cat([split.y for split in data.splits.values()]).double()
    correlation = torch.corrcoef(y.T)
    couplings = torch.from_numpy(data.couplings())
    assert correlation[couplings > 0].min() > 0.1
    assert correlation[couplings < 0].mean() < -0.05


@pytest.mark.parametrize("option", ["batch_size", "eval_batch_size"])
def test_a_batch_of_nothing_is_refused(option: str) -> None:
    with pytest.raises(DataMismatch, match=f"^{option} is 0: take 1 or more"):
        MultiLabelData(9, 3, **{option: 0})
