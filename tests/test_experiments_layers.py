"""Config files laid over one another: parts, rows of settings, and one sentence for each mistake."""

from pathlib import Path

import pytest

from experiments.errors import ConfigError
from experiments.plan.parser import ParseOnly
from scripts import check_conf


@pytest.mark.parametrize("option", ["--features.init_args.width", "--features.width"])
def test_a_part_has_options_of_its_own_which_reach_every_copy(root: Path, option: str) -> None:
    files = ["data/twitter_pos", "scheme/infnet", "objective/joint_stacked"]
    given = [part for file in files for part in ("--config", f"{root}/conf/{file}.yaml")]
    model = ParseOnly().resolve([*given, option, "77"])["model"]["init_args"]
    for net in (model["energy"]["init_args"]["net"], model["networks"]["init_args"]["test"]):
        features = net["init_args"]["features"]["init_args"]
        assert features["width"] == 77 and features["features"]["init_args"]["num_dims"] == 125
    with pytest.raises(ConfigError, match=r"--net.width=77 changes nothing: no file refers to"):
        ParseOnly().resolve(["--config", f"{root}/conf/data/ocr.yaml", "--model=x", "--net.width=77"])
    with pytest.raises(ConfigError, match=r"BiLSTM has no argument 'widht'.* Did you mean width"):
        ParseOnly().resolve([*given, "--features.init_args.widht", "77"])


CE, CD = ["scheme/cross_entropy"], ["scheme/implicit", "objective/cd"]


@pytest.mark.parametrize(
    ("files", "layer", "message"),
    [
        (["scheme/implicit"], None, r"implicit.yaml takes guess and objective, which .*objective/cd.yaml"),
        (
            ["scheme/implicit", "objective/ssvm"],
            None,
            r"conf/objective/ssvm.yaml sets criterion, which it does not take. Add .*conf/objective/cd.yaml",
        ),
        (["scheme/crf_joint", "objective/cd"], None, r"takes criterion.*objective/likelihood.yaml"),
        (
            ["scheme/infnet", "objective/cd"],
            None,
            r"takes joint_objective and networks.*such as .*joint_perceptron",
        ),
        ([*CE, "objective/cd"], None, r"conf/objective/cd.yaml changes nothing: it sets guess and objective"),
        (
            [*CE, "data/yeast"],
            None,
            r"one file of conf/data/, and .*twitter_pos.yaml and .*yeast.yaml both set data",
        ),
        (
            [*CD, *CE],
            None,
            r"one file of conf/scheme/, and .*cross_entropy.yaml and .*implicit.yaml both set model",
        ),
        (
            [*CD, "objective/nce"],
            None,
            r"one file of conf/objective/, and .*cd.yaml and .*nce.yaml both set guess",
        ),
        ([*CE, "objective/implicit_dvn"], None, r"has no argument 'energy_clip_norm'.*implicit_dvn"),
        (CE, "model: {init_args: {task_optimizr: 3}}", r"'task_optimizr' .*layer.yaml\. Did you mean task_o"),
        (CE, "stop: {paitence: 3}", r"No file refers to stop.paitence. Did you mean stop.patience"),
        (CE, "optimizer: {init_args: {lr: 0.1}}\nlearning_rate: 3", r"Unknown key learning_rate"),
        (
            CE,
            "optimizer: {init_args: {lr: 0.1}}\nmax_epochs: 3",
            r"Unknown key max_epochs",
        ),
        (CD, "joint: {class_path: energies.mlc.LabelMixEnergy}", r"Unknown key joint"),
        (
            CE,
            "optimizer.lr: 0.1",
            r"a key of a file has no dots. Write optimizer.lr as  optimizer: {lr: ...}",
        ),
        (CE, "optimizer: {lrr: 0.1}", r"SGD has no argument 'lrr' \(at model.task_opt.*mean lr"),
        (CE, "model: {task_optimizr: 3}", r"'task_optimizr' .*layer.yaml\. Did you mean task_o"),
        (CE, "optimizer: {init_args: {lrr: 0.1}}", r"SGD has no argument 'lrr' \(at model.task_opt.*mean lr"),
        (CD, "guess: {class_path: '${guess}'}", r"\$\{guess\} refers to itself"),
        (CE, "over: layer.yaml\nnet: {}", r"layer.yaml lies over itself"),
        (CE, "trianer: {max_epochs: 3}", r"Unknown key trianer.max_epochs. Did you mean trainer.max_epochs"),
        (CE, "nett: {init_args: {width: 3}}", r"Unknown key nett"),
        (CE, "modle: {init_args: {noise: 3}}", r"Unknown key modle.init_args.noise. Did you mean model"),
        (CE, "optimizr: {init_args: {lr: 0.1}}", r"Unknown key optimizr\S*. Did you mean optimizer"),
        (CE, "net: '${features.init_args.widht}'", r"widht\} refers to a key that no file sets: widht"),
        (CE, "", r"No keys in .*layer.yaml"),
    ],
)
def test_layers_that_do_not_fit_are_told_by_name(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: list[str],
    layer: str | None,
    message: str,
) -> None:
    monkeypatch.chdir(root)
    given = ["conf/data/twitter_pos.yaml", *(f"conf/{name}.yaml" for name in files)]
    if layer is not None:
        (tmp_path / "layer.yaml").write_text(layer)
        given.append(str(tmp_path / "layer.yaml"))
    with pytest.raises(ConfigError, match=message):
        ParseOnly().resolve([part for file in given for part in ("--config", file)])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "bibtex.yaml:dynamic_nc",
            r"no row 'dynamic_nc' in conf/tuned/.*bibtex.yaml. Did you mean dynamic_nce",
        ),
        ("bibtex.yaml", r"holds settings by row. Write conf/tuned/.*bibtex.yaml:ROW. There are: ce"),
        ("bibtx.yaml:ce", r"no file conf/tuned/.*bibtx.yaml. Did you mean conf/tuned/.*bibtex.yaml"),
        ("bibtex.yaml:static_nce", r"has no argument 'task_loss'"),
    ],
)
def test_settings_that_are_not_there_or_of_another_row_are_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, row: str, message: str
) -> None:
    monkeypatch.chdir(root)
    given = ["data/bibtex.yaml", "scheme/cross_entropy.yaml", f"tuned/seal_mlc/{row}"]
    with pytest.raises(ConfigError, match=message):
        ParseOnly().resolve([part for file in given for part in ("--config", f"conf/{file}")])


def test_a_row_of_settings_may_lie_over_another(root: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.yaml").write_text(
        "wide: {net: {init_args: {width: 7}}}\nsame: wide\n"
        "deep: {over: same, net: {init_args: {num_layers: 3}}}\n"
    )
    files = [f"{root}/conf/data/bibtex.yaml", f"{root}/conf/scheme/seal_dynamic.yaml"]
    files += [f"{root}/conf/objective/nce.yaml", f"{tmp_path}/rows.yaml:deep"]
    options = ["--net.dropout=1e-1", "--model.task_net.dropout=0.2"]
    given = [part for file in files for part in ("--config", file)]
    model = ParseOnly().resolve(given + options)["model"]["init_args"]
    nets = model["task_net"], model["energy"]["init_args"]["local"]["init_args"]["net"]
    assert [net["init_args"]["dropout"] for net in nets] == [0.2, 0.1]
    assert all((net["init_args"]["width"], net["init_args"]["num_layers"]) == (7, 3) for net in nets)


BLOCK = "".join(f"  key_{n}: {n}\n" for n in range(7))


def test_a_block_that_stands_in_two_files_is_told_with_both_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    assert check_conf.main([str(root)]) == 0
    (tmp_path / "conf/data").mkdir(parents=True)
    (tmp_path / "conf/one.yaml").write_text(f"# one\none:\n{BLOCK}")
    (tmp_path / "conf/data/two.yaml").write_text(
        f"two:\n\n    # said again\n{BLOCK.replace('  ', '    ')}  more: 8\n"
    )
    assert check_conf.main([str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "7 lines are in two files, from conf/data/two.yaml:4 and from conf/one.yaml:3" in said
    (tmp_path / "conf/one.yaml").write_text(BLOCK.replace("key_3: 3", "key_3: 4"))
    assert check_conf.main([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    "layer",
    ["optimizer: {lr: 0.5}", "model: {task_optimizer: {lr: 0.5}}", "optimizer: {init_args: {lr: 0.5}}"],
)
def test_arguments_of_an_object_need_no_init_args(root: Path, layer: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(layer)
    files = [f"{root}/conf/data/twitter_pos.yaml", f"{root}/conf/scheme/cross_entropy.yaml"]
    given = [part for file in (*files, str(tmp_path / "mine.yaml")) for part in ("--config", file)]
    optimizer = ParseOnly().resolve(given)["model"]["init_args"]["task_optimizer"]["init_args"]
    assert (optimizer["lr"], optimizer["momentum"]) == (0.5, 0.9)


def test_an_option_may_refer_to_a_part(root: Path, tmp_path: Path) -> None:
    files = [
        f"{root}/conf/data/generated.yaml",
        f"{root}/conf/scheme/implicit.yaml",
        f"{root}/conf/objective/cd.yaml",
    ]
    given = [part for file in files for part in ("--config", file)]
    joint = '{"class_path": "energies.mlc.LabelMixEnergy", "init_args": '
    joint += '{"num_labels": "${num_outputs}", "num_patterns": 5}}'
    for option in ([f"--model.energy.joint={joint}"], ["--model.energy.joint", joint]):
        energy = ParseOnly().resolve([*given, *option])["model"]["init_args"]["energy"]["init_args"]
        assert energy["joint"]["init_args"] == {"num_labels": 14, "num_patterns": 5}
    net = ParseOnly().resolve([*given, "--model.task_net=${energy.init_args.local.init_args.net}"])
    assert net["model"]["init_args"]["task_net"]["class_path"] == "networks.mlp.LabelMLP"
    (tmp_path / "other.yaml").write_text("other: {class_path: torch.optim.SGD, init_args: {lr: 0.3}}")
    layers = [f"--config={name}" for name in (*files, tmp_path / "other.yaml")]
    optimizer = ParseOnly().resolve([*layers, "--optimizer", "${other}"])["model"]["init_args"][
        "task_optimizer"
    ]
    assert optimizer["class_path"] == "torch.optim.SGD" and optimizer["init_args"]["lr"] == 0.3


@pytest.mark.parametrize(
    ("files", "options", "place", "wanted"),
    [
        (CE, "--optimizer torch.optim.SGD --optimizer.lr 0.3", "task_optimizer", {"lr": 0.3}),
        (CE, "--optimizer torch.optim.SGD --optimizer.init_args.lr 0.3", "task_optimizer", {"lr": 0.3}),
        (
            ["scheme/seal_dynamic", "objective/nce"],
            "--guess inference.guesses.Sampled --guess.num_samples 5",
            "guess",
            {"num_samples": 5},
        ),
    ],
)
def test_a_part_may_be_named_by_its_class_and_then_changed(
    root: Path, files: list[str], options: str, place: str, wanted: dict[str, float]
) -> None:
    layers = [f"--config={root}/conf/{name}.yaml" for name in ("data/yeast", *files)]
    part = ParseOnly().resolve([*layers, *options.split()])["model"]["init_args"][place]
    assert part["class_path"] == options.split()[1] and wanted.items() <= part["init_args"].items()
