"""Sweep files: what W&B takes is read, and every mistake is one sentence with file, line and key."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.errors import SweepError
from experiments.plan.layers import layered
from experiments.sweep.file import Early, read_sweep
from experiments.sweep.parameters import Choice, Number, Whole
from sweep_files import COMMAND, sweep_file, toy_sweep

LAYERS = ["conf/data/bibtex.yaml", "conf/scheme/seal_dynamic.yaml", "conf/objective/nce.yaml"]


def parameter(**tree: object) -> dict[str, Any]:
    return {"parameters": {"model.a": tree}, "method": "random"}


def command(*words: str) -> dict[str, Any]:
    return {"command": ["${env}", "python", "-m", "scripts.train", *words]}


def early(**tree: object) -> dict[str, Any]:
    return {"early_terminate": {"type": "hyperband", **tree}}


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    words = [
        f"--config={LAYERS[0]}",
        "--config",
        LAYERS[1],
        "-c",
        LAYERS[2],
        "--config=conf/logger/wandb.yaml",
    ]
    sweep = toy_sweep(
        tmp_path,
        method="bayes",
        description="What is searched",
        metric={"name": "val/example_f1", "goal": "maximize", "target": 0.5},
        run_cap=30,
        early_terminate={"type": "hyperband", "max_iter": 27, "s": 2, "strict": True},
        parameters={
            "model": {"parameters": {"init_args": {"parameters": {"k": {"min": 1, "max": 9}}}}},
            "data.batch_size": {"values": [16, 32]},
            "model.lr": {"distribution": "log_uniform_values", "min": 1.0e-4, "max": 1},
        },
        **command(*words, "--seed_everything", "3", "--trainer.max_epochs=5", "${args}"),
    )
    assert (sweep.name, sweep.title, sweep.method) == ("toy", "What is searched", "bayes")
    assert (sweep.metric, sweep.goal, sweep.target, sweep.run_cap) == ("val/example_f1", "maximize", 0.5, 30)
    assert sweep.layers == tuple(LAYERS)
    assert sweep.options == {"seed_everything": "3", "trainer.max_epochs": "5"}
    assert [*sweep.parameters] == ["data.batch_size", "model.init_args.k", "model.lr"]
    assert [type(one) for one in sweep.parameters.values()] == [Choice, Whole, Number]
    assert sweep.early == Early(max_iter=27, s=2, strict=True)
    assert sweep.early.bands(100) == [3, 9]
    assert Early(min_iter=4, eta=2).bands(33) == [4, 8, 16, 32]


@pytest.mark.parametrize(
    "words",
    [
        ["${env}", "${interpreter}", "${program}"],
        ["python", "scripts/train.py"],
        ["srun", "python", "-m", "scripts.train"],
    ],
)
def test_usual_commands_are_understood(words: list[str], tmp_path: Path) -> None:
    sweep = toy_sweep(tmp_path, command=[*words, f"--config={LAYERS[0]}", "${args}"])
    assert sweep.layers == (LAYERS[0],)


def test_the_wandb_package_accepts_what_is_sent_to_the_server(tmp_path: Path) -> None:
    config = pytest.importorskip("sweeps.config")
    sweep = toy_sweep(
        tmp_path,
        method="random",
        name="n",
        description="d",
        early_terminate={"type": "hyperband", "min_iter": 3},
        parameters={
            "model": {"parameters": {"a": {"values": [[1], {"x": 1}, None]}}},
            **{
                name: {"distribution": name, "mu": 1.0, "sigma": 2.0}
                for name in ("normal", "q_normal", "log_normal", "q_log_normal")
            },
            **{
                name: {"distribution": name, "min": 1.0, "max": 2.0}
                for name in (
                    "uniform",
                    "log_uniform_values",
                    "inv_log_uniform_values",
                    "q_log_uniform_values",
                )
            },
        },
    )
    assert config.schema_violations_from_proposed_config(json.loads(json.dumps(sweep.raw))) == []


def test_values_reach_a_run_through_wandbs_agent_as_they_are(tmp_path: Path) -> None:
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    values = [
        True,
        None,
        1e-5,
        "adam",
        [1, 2],
        {"class_path": "a.B", "init_args": {"lr": 0.1, "x": None}},
        "it's",
    ]
    values += ["it's", {"text": 'a "quoted" one\\'}]
    sweep = toy_sweep(tmp_path, parameters={"net": {"values": values}})
    for value, sent in zip(values, sweep.raw["parameters"]["net"]["values"], strict=True):
        (word,) = utils.create_sweep_command_args({"args": {"net": {"value": sent}}})["args"]
        scheme = tmp_path / "scheme.yaml"
        scheme.write_text("net: 0\nmodel: {a: '${net}'}\n")
        found = layered(["--config", str(scheme), word], None)
        assert found.tree["model"]["a"] == value


def test_nested_parameters_are_sent_by_dotted_name(tmp_path: Path) -> None:
    tree = {"model": {"parameters": {"b": {"values": [1]}, "c": {"parameters": {"d": {"value": 2}}}}}}
    assert toy_sweep(tmp_path, parameters=tree).raw["parameters"] == {
        "model.b": {"values": [1]},
        "model.c.d": {"value": 2},
    }


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "genetic"}, r"line 2: method is 'genetic'; it has to be grid or random or bayes\."),
    "no method": ({"method": None}, r"line 1: method is missing\."),
    "key": ({"metod": 1}, r"metod is not a key of a sweep\. Did you mean method"),
    "no metric": ({"metric": None}, r"line 1: metric is missing\."),
    "no name": ({"metric": {"goal": "minimize"}}, r"line 3: metric\.name is missing\."),
    "test": (
        {"metric": {"name": "test/f1"}},
        r"line 4: metric\.name is test/f1; a sweep judges by validation",
    ),
    "test too": ({"metric": {"name": "test_f1"}}, r"a sweep judges by validation"),
    "goal": (
        {"metric": {"name": "val/f1", "goal": "max"}},
        r"line 5: metric\.goal is 'max'; .*maximize or minimize",
    ),
    "distribution": (
        parameter(distribution="log_unifrom", min=1, max=2),
        r"no distribution 'log_unifrom'\. Did you mean log_uniform",
    ),
    "no distribution": (
        parameter(),
        r"parameters\.model\.a has neither value, values, min and max, nor a distribution\.",
    ),
    "name": ({"parameters": {"2x": {"value": 1}}}, r"parameters\.2x is not a dotted name, such as"),
    "slash": ({"parameters": {"model/a": {"value": 1}}}, r"model/a is not a dotted name"),
    "own": ({"parameters": {"run_dir": {"value": "x"}}}, r"run_dir is each run's own"),
    "order": (
        parameter(min=2, max=1),
        r"line 8: parameters\.model\.a\.min is 2, and max is 1; min has to be smaller\.",
    ),
    "no max": (parameter(min=2), r"parameters\.model\.a is int_uniform and needs max\."),
    "text": (
        parameter(min="1e-3", max=1),
        r"min is '1e-3'; it has to be a number \(YAML reads 1e-3 as text: write 1\.0e-3\)\.",
    ),
    "whole": (
        parameter(distribution="int_uniform", min=1, max=2.5),
        r"max is 2\.5; it has to be a whole number\.",
    ),
    "zero": (
        parameter(distribution="log_uniform_values", min=0, max=1),
        r"min is 0; it has to be a number above 0",
    ),
    "exponent": (
        parameter(distribution="log_uniform", min=0, max=1000),
        r"max is 1000, too large an exponent of e\.",
    ),
    "sigma": (parameter(distribution="normal", sigma=0), r"sigma is 0; it has to be a number above 0"),
    "foreign key": (
        parameter(distribution="normal", min=1),
        r"min is not a key of normal\. There are: mu, sigma\.",
    ),
    "unknown key": (
        parameter(values=[1], probability=[1]),
        r"probability is not a key of a parameter\. Did you mean prob",
    ),
    "no values": (parameter(values=[]), r"values is \[\]; it has to be a list that is not empty\."),
    "sum": (
        parameter(values=[1, 2], probabilities=[0.5, 0.4]),
        r"probabilities sum to 0\.9; they have to sum to 1\.",
    ),
    "shares": (parameter(values=[1, 2], probabilities=[1.0]), r"probabilities has 1, and values 2\."),
    "no parameters": (
        {"parameters": {}},
        r"parameters is \{\}; it has to hold `name: value` pairs, one at least\.",
    ),
    "nested": (
        {"parameters": {"model": {"parameters": {"a": {"values": 3}}}}},
        r"line 10: parameters\.model\.parameters\.a\.values is 3; ",
    ),
    "beside": (
        {"parameters": {"model": {"parameters": {"a": {"value": 3}}, "min": 1}}},
        r"model\.min stands beside nested",
    ),
    "grid": (
        {"parameters": {"model.a": {"min": 0.5, "max": 1.0}}},
        r"line 7: parameters\.model\.a is continuous, of which there is no grid",
    ),
    "weighted": (
        {"parameters": {"model.a": {"values": [1, 2], "probabilities": [0.5, 0.5]}}},
        r"has probabilities, of which there is no grid",
    ),
    "run_cap": ({"run_cap": 0}, r"run_cap is 0; it has to be a whole number, 1 or more\."),
    "stop": (
        {"early_terminate": {"type": "median"}},
        r"early_terminate\.type is 'median'; it has to be hyperband\.",
    ),
    "hyperband": (early(), r"early_terminate: hyperband needs min_iter, or max_iter and s\."),
    "no s": (early(max_iter=9), r"hyperband needs min_iter, or max_iter and s\."),
    "both": (
        early(max_iter=9, s=1, min_iter=2),
        r"hyperband takes min_iter, or max_iter with s\. Keep one\.",
    ),
    "eta": (early(min_iter=2, eta=1), r"eta is 1; it has to be a whole number, 2 or more\."),
    "no band": (early(max_iter=2, s=1), r"max_iter is 2, less than eta: no run could stop\."),
    "no command": ({"command": None}, r"line 1: command is missing\."),
    "no file": (
        command("--config=conf/data/bibtx.yaml", "${args}"),
        r"command\[4\]: there is no file conf/data/bibtx\.yaml\. Did you mean",
    ),
    "no row": (
        command("--config", "conf/tuned/seal_mlc/bibtex.yaml:cee", "${args}"),
        r"there is no row of conf/tuned/.* 'cee'\. Did you mean ce",
    ),
    "no layer": (
        command("--config=conf/logger/wandb.yaml", "${args}"),
        r"command names no --config of data and scheme",
    ),
    "no args": (command(f"--config={LAYERS[0]}"), r"command has no \$\{args\}"),
    "macro": (
        command(f"--config={LAYERS[0]}", "${args_json}"),
        r"command\[5\] is '\$\{args_json\}'; after scripts\.train come",
    ),
    "no value": (command("--config", "${args}"), r"command\[4\]: --config has no value\."),
    "folder": (command(f"--config={LAYERS[0]}", "--run_dir=x", "${args}"), r"a sweep cannot set --run_dir"),
    "program": (
        {"command": ["python", "train.py", "${args}"]},
        r"line \d+: command does not run scripts\.train",
    ),
    "twice": ({"command": [*COMMAND, "--model.a=2"]}, r"parameters\.model\.a: the command sets it too\."),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_with_file_line_and_key(name: str, tmp_path: Path) -> None:
    changes, says = MISTAKES[name]
    path = sweep_file(tmp_path, changes)
    with pytest.raises(SweepError, match=says) as caught:
        read_sweep(path)
    assert str(caught.value).startswith(f"{path}, line ")
    assert "\n" not in str(caught.value)


def test_what_is_no_sweep_file_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(
        SweepError, match=r"There is no sweep 'nowhere' \(looked for conf/sweeps/nowhere.yaml\)"
    ):
        read_sweep("nowhere")
    path = tmp_path / "broken.yaml"
    for text, says in [
        ("method: [grid", "line 1 is not YAML"),
        ("", "the file is None"),
        ("- 1", "the file is "),
    ]:
        path.write_text(text)
        with pytest.raises(SweepError, match=says):
            read_sweep(path)
    path.write_bytes(b"method: \xff")
    with pytest.raises(SweepError, match="is not UTF-8"):
        read_sweep(path)
    path.write_text("method: grid\nmethod: bayes\n")
    with pytest.raises(SweepError, match=r"line 2 is not YAML: the key method comes twice"):
        read_sweep(path)


def test_reading_neither_needs_torch_nor_optuna(root: Path, tmp_path: Path) -> None:
    lines = [
        "import sys",
        "from experiments.sweep import bayes, study",
        "from experiments.sweep.file import read_sweep",
        f"read_sweep({str(sweep_file(tmp_path))!r})",
        "print({'torch', 'optuna', 'wandb'} & {*sys.modules})",
    ]
    answer = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=root, check=True
    )
    assert answer.stdout.strip() == "set()"


def test_text_in_a_file_stays_text(tmp_path: Path) -> None:
    path = sweep_file(tmp_path)
    path.write_text(path.read_text().replace("- 0.1\n", "- on\n"))
    tree = yaml.safe_load(path.read_text())
    assert tree["parameters"]["model.b"]["values"][0] is True
    assert read_sweep(path).parameters["model.b"].grid() == ["on", 0.2]
