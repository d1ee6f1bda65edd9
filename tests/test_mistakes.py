"""Mistakes of a user on the command line: one sentence that names the option or file, and nothing lost."""

import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import toy_world
from datamodules.batches import Batch
from datamodules.errors import DataError, DataMismatch
from datamodules.mlc import MultiLabelData
from energies.base import MaskedEnergy
from experiments import store
from experiments.errors import UserError
from experiments.run.cli import by_hand_folder, sentence
from experiments.run.lent import SameData
from inference.chain.crf import CRF
from lightning_modules.base import Part
from lightning_modules.cross_entropy import CrossEntropy
from scripts import options, train
from scripts.finished.run import built
from toy_world import World

world = toy_world.world  # the fixture
ROOT = Path(__file__).resolve().parent.parent
QUICK = ["--config=conf/data/generated.yaml", "--config=conf/scheme/cross_entropy.yaml"]


class Bug(torch.nn.Module):
    """An energy whose author made a mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.size = {"a": 1}["b"]


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a run by hand that is refused says."""
    assert train.main([*QUICK, *arguments]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_a_folder_with_files_of_others_is_left_as_it_is(
    root: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        name: f"mine: {name}" for name in ("film.mkv.part", "hpc_ckpt_1.ckpt", "config.yaml", "metrics.csv")
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    message = said(capsys, f"--run_dir={tmp_path}", "--trainer.max_epochs=1")
    assert (
        message == f"{tmp_path} has files and is no run's folder. Choose another --run_dir, or an empty one."
    )
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_only_incomplete_files_of_our_own_are_removed(tmp_path: Path) -> None:
    for name in ("film.part", ".film.part", ".best.ckpt.123.part"):
        (tmp_path / name).touch()
    store.sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"film.part", ".film.part"}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--run_dir=", "--run_dir is empty. Name the folder of the run's files, or leave it out."),
        ("--trainer.fast_dev_run=true", "take --trainer.max_epochs 1 --trainer.limit_train_batches 2"),
        ("--trainer.max_epochs=0", "--trainer.max_epochs is 0: take more."),
        ("--trainer.max_epochs=-3", "--trainer.max_epochs is -3: take 1 or more, or -1 for ever."),
        ("--trainer.max_steps=5", "take --trainer.max_epochs, or --trainer.limit_train_batches"),
        ("--trainer.limit_val_batches=0", "--trainer.limit_val_batches is 0: take more."),
        (
            "--trainer.check_val_every_n_epoch=400",
            "is 400, above --trainer.max_epochs 300: no epoch is validated",
        ),
        ("--seed_everything=-1", "--seed_everything is -1: take 0 to 4294967295."),
        ("--stop.patience=-1", "--stop.patience is -1: take 0 or more."),
        (
            "--trainer.gradient_clip_val=1",
            "gradient_clip_val cannot be set, since schemes make their own steps: take --c",
        ),
        ("--trainer.accumulate_grad_batches=2", "take a larger --data.batch_size"),
        ("--trainer.enable_checkpointing=false", "a run tests its best checkpoint"),
        ("--config=", "--config takes a file, such as conf/data/yeast.yaml."),
        (
            '--trainer.callbacks=[{"class_path":"OnExceptionCheckpoint","init_args":{"dirpath":"there"}}]',
            "no ModelCheckpoint, and a run tests its best checkpoint",
        ),
        ("--trainer.callbacks=[]", "no ModelCheckpoint, and a run tests its best checkpoint"),
        (
            "--trainer.profiler=simple",
            "simple has no file to write to. Name its class and a file: --trainer.profiler",
        ),
        ("--trainer.precision=bf17", "'bf17' (at trainer.precision): expected one of transformer-engine"),
        ("--seed_everything=abc", "--seed_everything abc: take a whole number."),
        ("--seed_everything=true", "--seed_everything True: take a whole number."),
        ("--optimizer.lr=-1", "--model.task_optimizer.lr is -1.0: take 0 or more."),
        ("--optimizer=torch.optim.LBFGS", "task_optimizer is LBFGS, which makes steps of its own."),
        ("--cost=losses.costs.hamming", "There is no function losses.costs.hamming (at model.space.cost_"),
        ("--config", "--config takes a file, such as conf/data/yeast.yaml."),
        ("--config=conf", "conf is a folder: --config takes a file"),
        ("--cluster=nope", "There is no cluster file conf/cluster/nope.yaml."),
    ],
)
def test_settings_with_which_no_run_can_end_are_refused(
    root: None, capsys: pytest.CaptureFixture[str], option: str, message: str
) -> None:
    assert message in said(capsys, *option.split(" "))


def test_a_callback_whose_default_is_of_an_enum_is_added(root: None, tmp_path: Path) -> None:
    timer = "--trainer.callbacks+=pytorch_lightning.callbacks.Timer"
    quick = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=1", f"--run_dir={tmp_path / 'run'}"]
    assert train.main([*QUICK, timer, *quick]) == 0


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_checkpoint_that_cannot_be_read_is_named(
    root: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "best.ckpt"
    path.write_bytes(content)
    given = f"--model.task_net.init_args.checkpoint={path}"
    assert (
        train.main([QUICK[0], "--config=conf/scheme/finished.yaml", given, f"--run_dir={tmp_path}/run"]) == 2
    )
    message = " ".join(capsys.readouterr().err.split())
    assert f"checkpoint is {path}, which is damaged or is no checkpoint" in message


def test_a_bug_in_an_object_of_the_users_own_has_its_type_and_line(
    root: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = said(capsys, f"--model.task_net={__name__}.Bug", f"--run_dir={tmp_path / 'run'}")
    line = next(
        i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if '{"a": 1}["b"]' in text
    )
    assert message.startswith("model.init_args.task_net: KeyError: 'b' (in ")
    assert message.endswith(f"{Path(__file__).name}:{line})")


def test_runs_that_start_in_the_same_second_have_folders_of_their_own() -> None:
    assert by_hand_folder(QUICK) != by_hand_folder([*QUICK, "--seed_everything=1"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--collect --rows plain", "--collect draws the whole table and runs nothing: leave --rows out."),
        ("--collect --dry-run", "--collect draws the whole table and runs nothing: leave --dry-run out."),
        ("--status --fresh", "--status prints states and runs nothing: leave --fresh out."),
        ("--verify --fresh", "--verify trains finished runs again"),
    ],
)
def test_options_without_a_meaning_together_are_refused(world: World, given: str, message: str) -> None:
    code, told = world.reproduce(*given.split())
    assert code == 2 and message in told


def test_a_file_where_the_folder_of_runs_should_be_is_one_sentence(world: World) -> None:
    Path("runs").touch()
    code, told = world.reproduce("--rows", "plain", "--seeds", "0")
    assert code == 1 and "/lock could not be written: Not a directory." in told


def test_a_command_without_options_takes_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []
    for argument, code in (("--help", 0), ("--nosuch", 2)):
        monkeypatch.setattr("sys.argv", ["command", argument])
        with pytest.raises(SystemExit) as ended:
            options.alone(lambda: ran.append(1), "Draws.")
        assert ended.value.code == code and not ran
    assert "Draws." in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["command"])
    assert options.alone(lambda: ran.append(1), "Draws.") == 0 and ran == [1]


def test_a_batch_without_a_real_position_has_loss_0_by_every_reduction() -> None:
    crf = CRF(5, batch_first=True)
    emissions, tags = torch.randn(2, 3, 5), torch.zeros(2, 3, dtype=torch.long)
    for reduction in ("sum", "mean", "token_mean"):
        assert crf(emissions, tags, torch.zeros(2, 3, dtype=torch.bool), reduction=reduction) == 0


def test_a_warning_of_our_own_is_a_sentence_and_that_of_a_library_as_it_is() -> None:
    own = str(ROOT / "datamodules" / "mlc.py")
    assert sentence("3 rows have no label.", UserWarning, own, 7) == "3 rows have no label.\n"
    assert sentence("old", FutureWarning, torch.__file__, 7) == f"{torch.__file__}:7: FutureWarning: old\n"


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        (
            ("scheme/seal_dynamic", "objective/nce"),
            ("--model.guess=inference.guesses.Point",),
            "NCERanking needs samples of a known distribution, with its logits: take the guess inference",
        ),
        (
            ("scheme/infnet", "objective/joint_exact"),
            (),
            "is found for tags, not for LabelSets. Take inference.networks.SampledAugmented",
        ),
    ],
)
def test_parts_that_do_not_fit_each_other_are_named_in_the_first_step(
    root: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    layers: tuple[str, ...],
    options: tuple[str, ...],
    message: str,
) -> None:
    files = [f"--config=conf/{layer}.yaml" for layer in ("data/generated", *layers)]
    assert train.main([*files, *options, f"--run_dir={tmp_path}/run"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert message in said and "Error:" not in said


def test_a_file_that_does_not_tell_its_sizes_asks_for_them(tmp_path: Path) -> None:
    file = tmp_path / "t.svm"
    file.write_text("0 1:1\n")
    with pytest.raises(DataMismatch, match=r"Give both: --data\.num_features and --data\.num_labels"):
        MultiLabelData(train=str(file))


def test_a_part_that_was_trained_on_other_data_is_named(root: None, tmp_path: Path) -> None:
    yeast = ["--config=conf/data/yeast.yaml", "--config=conf/scheme/finished.yaml"]
    if reason := MultiLabelData(name="yeast", num_features=103, num_labels=14).missing():
        pytest.skip(reason)
    assert train.main([*QUICK, "--trainer.max_epochs=1", f"--run_dir={tmp_path}/a"]) == 0
    lent = f"--model.task_net.init_args.checkpoint={tmp_path}/a/checkpoints/best.ckpt"
    with pytest.warns(UserWarning, match=r"best\.ckpt was trained on other data \(generated data\)"):
        assert train.main([*yeast, lent, f"--run_dir={tmp_path}/b"]) == 0
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*other data.*")
        assert train.main([QUICK[0], yeast[1], lent, f"--run_dir={tmp_path}/c"]) == 0
        (tmp_path / "a" / "record.json").write_text("{}")  # an old record has no checksums
        lender = SameData({"checkpoint": lent.partition("=")[2]})
        lender.on_fit_start(SimpleNamespace(datamodule=SimpleNamespace(checksums={"a": "1"})), None)


def test_a_file_and_a_folder_in_each_others_place_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\(--data\.train\) is a folder\. Give the file in it\."):
        MultiLabelData(train=str(tmp_path), num_features=2, num_labels=2).setup()
    with pytest.raises(UserError, match=r"README\.md is a file\. Give the folder of a finished run"):
        built(ROOT / "README.md")


class Idle(CrossEntropy):
    """A scheme that leaves its steps to Lightning."""

    def training_step(self, batch: Batch, index: int) -> Tensor:  # type: ignore[override]
        return self.task_loss(batch)


class Elsewhere(CrossEntropy):
    """A scheme that misspells its part."""

    def training_step(self, batch: Batch, index: int) -> None:
        self.move("tsk", batch)


class ByRow(CrossEntropy):
    """A scheme whose author forgot the mean."""

    def task_loss(self, batch: Batch) -> Tensor:
        return self.space.supervise(self.task_net(batch.inputs), batch.y)


class Constant(CrossEntropy):
    """A scheme whose loss is of nothing that learns."""

    def task_loss(self, batch: Batch) -> Tensor:
        return torch.zeros(())


class Taken(CrossEntropy):
    """A scheme whose loss is a number of Python."""

    def task_loss(self, batch: Batch) -> Tensor:
        return super().task_loss(batch).item()  # type: ignore[return-value]


class Listed(CrossEntropy):
    """A scheme whose parts have no names."""

    def parts(self) -> dict[str, Part]:
        return list(super().parts().values())  # type: ignore[return-value]


class Nets(CrossEntropy):
    """A scheme that names its networks as parts."""

    def parts(self) -> dict[str, Part]:
        return {"task": self.task_net}  # type: ignore[dict-item]


class Empty(CrossEntropy):
    """A scheme with a part that has nothing to move."""

    def parts(self) -> dict[str, Part]:
        return {"task": Part([], self.task_optimizer, self.task_loss)}


class Partial(MaskedEnergy):
    """An energy of answers with positions whose author wrote forward, as for answers without."""

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        return y.sum((-2, -1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Idle", "no part of Idle has moved in an epoch: training_step calls self.move(name, batch)"),
        ("Elsewhere", "Elsewhere moves 'tsk', and parts() names task."),
        (
            "Constant",
            "Constant.task_loss has no gradient: compute it of what the part learns, without detach.",
        ),
        ("Taken", "Taken.task_loss gives a float: it has to return a tensor, one number."),
        ("Listed", "Listed.parts() gives a list: it has to return a dict, from a name to each Part."),
        ("Nets", "Nets.parts() has a LabelMLP as 'task': it has to be a Part."),
        (
            "Empty",
            "the part that minimises CrossEntropy.task_loss has no parameters: give those that it moves.",
        ),
        ("ByRow", "ByRow.task_loss has shape (32,): it has to be one number, as a mean is."),
    ],
)
def test_a_scheme_that_cannot_train_is_named(
    root: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    text = Path("conf/scheme/cross_entropy.yaml").read_text()
    own = tmp_path / "own.yaml"
    own.write_text(text.replace("lightning_modules.cross_entropy.CrossEntropy", f"{__name__}.{name}"))
    files = ["--config=conf/data/generated.yaml", f"--config={own}"]
    assert train.main([*files, "--trainer.max_epochs=2", f"--run_dir={tmp_path}/run"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_method_that_an_energy_lacks_is_named(root: None, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("data/generated", "scheme/implicit", "objective/cd")
    options = [f"--config=conf/{file}.yaml" for file in files]
    assert train.main([*options, f"--model.energy.joint={__name__}.Partial"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert message == f"{__name__}.Partial (at model.energy.joint) is not complete: write its method given."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--ckpt_path", "x.ckpt"],
            "Unknown option --ckpt_path: a run resumes where it stopped, by --run_dir",
        ),
        (["fit"], "Unknown option fit: there are no subcommands; a run trains, then tests."),
        (["predict"], "python -m scripts.predict RUN_DIR"),
    ],
)
def test_what_users_of_other_command_lines_try_is_answered(
    root: None, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert message in said(capsys, *options)


def test_an_argument_that_an_object_lacks_is_asked_for_where_it_stands(
    root: None, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("data/generated", "scheme/implicit", "objective/cd")
    options = [f"--config=conf/{file}.yaml" for file in files]
    assert train.main([*options, "--model.energy.joint=energies.mlc.LocalEnergy"]) == 2
    assert "is given (at model.energy.joint). Add --model.energy.joint." in capsys.readouterr().err


def test_a_crf_for_sets_of_labels_is_refused_with_what_fits(
    root: None, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("data/generated", "scheme/crf_joint", "objective/likelihood")
    assert train.main([f"--config=conf/{file}.yaml" for file in files]) == 2
    assert "A CRF needs exact inference: for this scheme take data with tags, or conf" in " ".join(
        capsys.readouterr().err.split()
    )
