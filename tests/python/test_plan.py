"""plan: what fits where, by numbers that can be worked out by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from checkpoints import make_source, small_config
from ngram_ple import HashPlan, NGramConfig
from ngram_ple.cli import main
from ngram_ple.cli.plan import memory
from ngram_ple.errors import ConfigError, NgramPleError
from ngram_ple.formats import row_format
from ngram_ple.planning import SHIPPED, Machine, Option, Plan, Rates, make_plan, read_rates

GIB = 1 << 30
REAL = NGramConfig(
    vocab_size=248320, ple_embed_dim=2560, eos_token_id=248044, ple_layer_ids=(2,), split_ngram_parts=128
)
ROWS = 320_001_536


def plan(gpus: int, gpu: float, host: float, stored: str = "bf16", **options: Any) -> Plan:
    machine = Machine(gpus, gpu * GIB, host * GIB)
    return make_plan([REAL], machine, SHIPPED, stored_format=stored, **options)


def option(found: Plan, format: str, placement: str) -> Option:
    return next(one for one in found.options if (one.format, one.placement) == (format, placement))


def test_bytes_of_the_published_model() -> None:
    found = plan(8, 141, 500)
    assert found.rows == ROWS
    for format, slot in (("bf16", 320), ("fp8", 160), ("fp8-rowwise", 176), ("nvfp4", 96)):
        whole, part, pinned = (option(found, format, p) for p in ("device", "device / 8", "pinned"))
        assert whole.gpu_bytes == ROWS * slot
        assert part.gpu_bytes == ROWS // 8 * slot
        assert (pinned.host_bytes, pinned.gpu_bytes) == (ROWS * slot, 8192 * 2560 * 2)
        assert (whole.link, part.link, pinned.link) == ("", "NVLink", "PCIe")
        assert (whole.link_bytes, part.link_bytes, pinned.link_bytes) == (0, 16 * slot * 7 / 8, 16 * slot)
        assert whole.fits
        assert part.fits
        assert pinned.fits


def test_times_of_the_published_model() -> None:
    """Those that were measured, with the shipped rates; NVLink and PCIe by their bytes and rows."""
    found = plan(2, 141, 500)
    for format, spent in (("bf16", 25.6), ("fp8", 22.2), ("nvfp4", 19.8)):
        assert option(found, format, "device").time_us == pytest.approx(spent)
        moved = 8192 * 16 * row_format(format, 160).slot_bytes / 2
        expected = spent + moved / 390e9 * 1e6
        assert option(found, format, "device / 2").time_us == pytest.approx(expected)
        row_ns = max(4.6, row_format(format, 160).slot_bytes / 55.4)
        assert option(found, format, "pinned").time_us == pytest.approx(50 + 8192 * 16 * row_ns / 1e3)
        few = option(plan(2, 141, 500, tokens=8), format, "pinned")
        assert few.time_us == pytest.approx(8 * 16 * 0.033)
    rowwise = option(found, "fp8-rowwise", "device").time_us
    assert rowwise is not None
    assert 22.2 < rowwise < 25.6
    for tokens, least, most in (
        (1, 1.85, 1.85),
        (700, 2.27, 5.10),
        (16384, 25.6, 88.9),
        (65536, 177.8, 177.8),
    ):
        spent = option(plan(2, 141, 500, tokens=tokens), "bf16", "device").time_us
        assert spent is not None
        assert least <= spent <= most


def test_pinned_rows_of_many_bytes_are_bound_by_the_link() -> None:
    wide = NGramConfig(
        vocab_size=1000,
        ple_embed_dim=16 * 4096,
        eos_token_id=1,
        ple_layer_ids=(1,),
        ngram_vocab_size_base=1000,
    )
    found = make_plan([wide], Machine(1, 80 * GIB, 80 * GIB), SHIPPED, stored_format="bf16", tokens=100)
    kernel = option(found, "bf16", "device").time_us
    assert kernel is not None
    assert option(found, "bf16", "pinned").time_us == pytest.approx(kernel + 100 * 16 * 8192 / 55.4e9 * 1e6)


@pytest.mark.parametrize("stored", ["bf16", "fp8", "nvfp4"])
@pytest.mark.parametrize("tokens", [1, 2, 4, 8, 64, 1024, 8192, 10**6])
def test_the_device_is_never_slower_than_pinned(tokens: int, stored: str) -> None:
    """A lookup in place is a launch, too."""
    for gpus, gpu in ((1, 200), (1, 30), (8, 13), (8, 4)):
        found = plan(gpus, gpu, 500, stored, tokens=tokens)
        pinned: list[float] = []
        device: list[float] = []
        for one in found.options:
            assert one.time_us is not None
            (pinned if one.placement == "pinned" else device).append(one.time_us)
        assert min(pinned) > max(device)
        assert found.recommended is not None
        if found.recommended.placement == "pinned":
            assert "the fastest one that fits" not in found.reason


@pytest.mark.parametrize(("tokens", "measured"), [(8, 3.7), (64, 29.0)])
def test_few_pinned_rows_as_they_were_measured(tokens: int, measured: float) -> None:
    spent = option(plan(1, 141, 500, tokens=tokens), "fp8", "pinned").time_us
    assert spent == pytest.approx(measured, rel=0.2)


def rates_of(places: dict[str, dict[str, dict[int, float]]], **more: float) -> Rates:
    return Rates("some", "measured", places, **more)


PARTIAL = [
    (
        {"fp8": {8: 10.0}},
        "fp8",
        "that fits of those whose time is known; the time of more accurate ones is not",
    ),
    ({"bf16": {8: 10.0}}, "bf16", "that fits of those whose time is known, and none is more accurate"),
    ({"bf16": {8: 90.0}, "nvfp4": {8: 10.0}}, "nvfp4", "3 times as long, or their time is not known"),
    (
        {"bf16": {8: 20.0}, "nvfp4": {8: 10.0}},
        "bf16",
        "within 3 times the fastest that fits of those whose time",
    ),
]


@pytest.mark.parametrize(("embed", "expected", "said"), PARTIAL)
def test_times_that_are_not_known(embed: dict[str, dict[int, float]], expected: str, said: str) -> None:
    """They are nobody's reason."""
    machine = Machine(0, 0, 500 * GIB)
    found = make_plan([REAL], machine, rates_of({"cpu": embed}), stored_format="bf16", tokens=8)
    assert found.recommended is not None
    assert found.recommended.format == expected
    assert said in found.reason


def test_pinned_needs_a_known_time_on_the_device() -> None:
    rates = rates_of({"device": {"fp8": {1: 2.0}}}, host_to_device=50e9, pinned_row_ns=33.0)
    found = make_plan([REAL], Machine(1, 500 * GIB, 500 * GIB), rates, stored_format="bf16", tokens=1)
    assert option(found, "bf16", "pinned").time_us is None
    assert option(found, "fp8", "pinned").time_us == pytest.approx(2.2, rel=0.1)


def test_times_far_beyond_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More than four times the largest batch: marked."""
    saved, config = tmp_path / "rates.json", tmp_path / "config.json"
    config.write_text(json.dumps(REAL.to_dict()))
    saved.write_text(json.dumps(rates_of({"cpu": {"bf16": {1: 5.0, 8: 10.0}}}).to_json()))
    arguments = [str(config), "--gpus", "0", "--host-memory", "500", "--rates", str(saved), "--tokens"]
    for tokens, spent, largest in ((32, 40.0, None), (33, 41.25, 8)):
        bf16 = run([*arguments, str(tokens)], capsys)["options"][0]
        assert bf16["time_us"] == pytest.approx(spent)
        assert bf16["extrapolated_from"] == largest
        assert main(["plan", *arguments, str(tokens)]) == 0
        out = capsys.readouterr().out
        assert (" ~41.2 " in out) == (largest is not None)
        assert out.count("~") == (2 if largest else 0)
        assert ("\n~ extrapolated from 8 tokens, the most that were measured\n" in out) == (
            largest is not None
        )
    shipped = plan(1, 500, 500, tokens=10**6)
    assert option(shipped, "bf16", "device").extrapolated_from == 32768


@pytest.mark.parametrize(
    ("gpus", "gpu", "host", "stored", "expected", "said"),
    [
        (1, 141, 500, "bf16", ("bf16", "device"), "most accurate one within 3 times the fastest"),
        (1, 60, 500, "bf16", ("fp8", "device"), "most accurate one within 3 times"),
        (1, 30, 500, "bf16", ("nvfp4", "device"), "more accurate ones take more than 3 times as long"),
        (1, 30, 20, "bf16", ("nvfp4", "device"), "more accurate ones do not fit"),
        (8, 20, 500, "bf16", ("bf16", "device / 8"), "most accurate one within 3 times"),
        (1, 10, 500, "bf16", ("bf16", "pinned"), "most accurate one within 3 times"),
        (1, 10, 60, "bf16", ("fp8", "pinned"), "more accurate ones do not fit"),
        (1, 141, 500, "nvfp4", ("nvfp4", "device"), "none is more accurate"),
        (0, 0, 100, "bf16", ("bf16", "cpu"), "no times are known"),
    ],
)
def test_recommendations(
    gpus: int, gpu: float, host: float, stored: str, expected: tuple[str, str], said: str
) -> None:
    found = plan(gpus, gpu, host, stored)
    assert found.recommended is not None
    assert (found.recommended.format, found.recommended.placement) == expected
    assert said in found.reason
    assert found.recommended.fits


def test_nothing_fits() -> None:
    found = plan(1, 10, 20)
    assert found.recommended is None
    assert found.reason.startswith("nothing fits; the smallest is nvfp4")
    assert all(one.why_not for one in found.options)
    assert option(found, "bf16", "device").why_not == "each GPU needs 95.4 GiB, has 10.0"
    assert option(found, "bf16", "pinned").why_not == "the host needs 95.4 GiB, has 20.0"


def test_buffers_of_pinned_tables_count() -> None:
    found = plan(1, 0.5, 500, max_tokens=1 << 20)
    assert "(buffers) needs 5.0 GiB" in option(found, "fp8", "pinned").why_not


def test_several_layers_and_odd_parts() -> None:
    configs = [small_config(ple_layer_ids=(2, 5), layer=layer) for layer in (0, 1)]
    rows = [HashPlan.from_config(config).padded_rows for config in configs]
    found = make_plan(configs, Machine(3, GIB, GIB), SHIPPED, stored_format="fp8", tokens=8)
    assert (found.layers, found.rows) == (2, sum(rows))
    assert option(found, "fp8", "device / 3").gpu_bytes == 32 * sum(-(-count // 3) for count in rows)
    assert option(found, "bf16", "pinned").link_bytes == 2 * 4 * 64
    assert option(found, "bf16", "pinned").relative_error == option(found, "fp8", "pinned").relative_error


def test_a_head_dim_without_nvfp4() -> None:
    config = small_config(ple_embed_dim=4 * 24)
    found = make_plan([config], Machine(1, GIB, GIB), SHIPPED, stored_format="bf16")
    assert {one.format for one in found.options} == {"bf16", "fp8", "fp8-rowwise"}


@pytest.mark.parametrize("text", ["80", "80G", "80g", "80GiB", "80 gib", "81920M", "0.078125T"])
def test_memory_sizes(text: str) -> None:
    assert memory(text) == 80 * GIB


@pytest.mark.parametrize("text", ["80GB", "80 gb", "80000MB", "80000000kB", "0.08TB"])
def test_memory_sizes_of_powers_of_1000(text: str) -> None:
    assert memory(text) == 80e9


@pytest.mark.parametrize("text", ["", "x", "-1", "1e9", "8P", "nan", "inf", "80 GiB more", "80B", "80iB"])
def test_sizes_that_are_none(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", str(tmp_path), "--gpus", "1", f"--gpu-memory={text}", "--host-memory", "1"]
    assert main(arguments) == 2
    assert "must be a size such as 80, 80GB or 512MiB" in capsys.readouterr().err


def test_gpus_need_their_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small_config().to_dict()))
    arguments = ["plan", str(tmp_path), "--host-memory", "1"]
    assert main([*arguments, "--gpus", "2"]) == 2
    assert "--gpus 2 needs --gpu-memory" in capsys.readouterr().err
    assert main([*arguments, "--gpus", "0"]) == 0
    assert main([*arguments, "--gpus", "0", "--gpu-memory", "40"]) == 2
    assert "--gpu-memory needs --gpus of at least 1, got --gpus 0" in capsys.readouterr().err


def test_gpus_are_a_sensible_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small_config().to_dict()))
    arguments = ["plan", str(tmp_path), "--host-memory", "1", "--gpu-memory", "1", "--gpus"]
    assert main([*arguments, "65536"]) == 0
    for wrong, said in (("65537", "at most 65536"), ("-1", "at least 0"), ("1" + 18 * "0", "at most 65536")):
        assert main([*arguments, wrong]) == 2
        assert f"--gpus: must be an integer of {said}, got '{wrong}'" in capsys.readouterr().err


def test_the_conversion_to_do_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names the folder that was given, for a shell."""
    folder = tmp_path / "my model"
    folder.mkdir()
    config = folder / "config.json"
    config.write_text(json.dumps(REAL.to_dict()))
    for path, shown in ((folder, f"'{folder}'"), (config, "CHECKPOINT")):
        assert main(["plan", str(path), "--gpus", "1", "--gpu-memory", "60", "--host-memory", "0"]) == 0
        assert f"first  ngram-ple convert {shown} DST --to fp8\n" in capsys.readouterr().out


def test_small_sizes_are_not_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small_config().to_dict()))
    assert main(["plan", str(tmp_path), "--gpus", "0", "--host-memory", "0"]) == 0
    assert re.search(r"the host needs [1-9]\S+ GiB, has 0\n", capsys.readouterr().out)


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder tells the format by its tensors, a config.json by what it says."""
    machine = ["--gpus", "2", "--gpu-memory", "1", "--host-memory", "1"]
    rows = HashPlan.from_config(small_config()).padded_rows
    folder = make_source("nvfp4", rows).write(tmp_path / "checkpoint")
    facts = run([str(folder), *machine], capsys)
    assert (facts["stored_format"], facts["rows"], facts["tokens"]) == ("nvfp4", rows, 8192)
    assert facts["recommended"] == {"format": "nvfp4", "placement": "device"}
    assert "H200" in facts["rates"]["source"]
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({**small_config().to_dict(), "quantization_config": {"quant_method": "fp8"}})
    )
    assert run([str(config), *machine], capsys)["stored_format"] == "fp8"
    config.write_text(json.dumps(small_config().to_dict()))
    assert run([str(config), *machine, "--tokens", "5"], capsys)["stored_format"] == "bf16"
    assert main(["plan", str(config), *machine]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "not of this machine" in lines[1]
    assert sum(line.startswith("->") for line in lines) == 1
    assert lines[-1].startswith("recommended")
    assert main(["plan", str(tmp_path / "nothing"), *machine]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_rates_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`bench --save` writes them, `plan --rates` counts with them."""
    saved = tmp_path / "rates.json"
    bench = ["bench", "--placement", "cpu", "--format", "bf16", "--tokens", "1", "--tokens", "16"]
    assert main([*bench, "--rows-per-head", "50", "--save", str(saved), "--json"]) == 0
    measured = {row["T"]: row["embed us"] for row in json.loads(capsys.readouterr().out)["rows"]}
    rates = read_rates(saved)
    assert rates.embed_us == {"cpu": {"bf16": pytest.approx(measured)}}
    assert rates.peer is None
    config = tmp_path / "config.json"
    config.write_text(json.dumps(REAL.to_dict()))
    arguments = [str(config), "--gpus", "0", "--host-memory", "100", "--tokens", "16", "--rates", str(saved)]
    facts = run(arguments, capsys)
    assert facts["rates"]["source"] == f"measured, {saved}"
    times = {one["format"]: one["time_us"] for one in facts["options"]}
    assert times == {"bf16": pytest.approx(measured[16]), "fp8": None, "fp8-rowwise": None, "nvfp4": None}


def test_bench_replaces_its_own_files_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says so before it measures."""

    def measured(*_: object, **__: object) -> float:
        raise NgramPleError("it measured")

    monkeypatch.setattr("ngram_ple.cli.bench.copy_rate", measured)
    config, saved = tmp_path / "config.json", tmp_path / "saved.json"
    config.write_text(json.dumps(small_config().to_dict()))
    saved.write_text(json.dumps(SHIPPED.to_json()))
    for option, file, said in (
        ("--save", config, "--save must be a new file or one that it wrote"),
        ("--save", tmp_path, "--save must be a regular file"),
        ("--save", tmp_path / "no" / "x.json", "--save must be a file in a folder that exists"),
        ("--plot", tmp_path / "no" / "x.png", "--plot must be a file in a folder that exists"),
        ("--save", saved, "it measured"),
        ("--save", tmp_path / "new.json", "it measured"),
    ):
        assert main(["bench", "--placement", "cpu", option, str(file)]) == 2
        assert said in capsys.readouterr().err
    assert json.loads(config.read_text()) == small_config().to_dict()


def test_bench_finds_beforehand_what_no_memory_is_there_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object, **__: object) -> float:
        raise NgramPleError("it measured")

    monkeypatch.setattr("ngram_ple.cli.bench.copy_rate", measured)
    arguments = ["bench", "--placement", "cpu", "--format", "nvfp4", "--format", "fp8", "--rows-per-head"]
    assert main([*arguments, "99999999999"]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"ngram-ple bench: --rows-per-head 99999999999 needs ([0-9,]+) bytes \(139\.7 TiB\) for nvfp4, "
        r"but [0-9.]+ [KMGT]iB are free on cpu\n",
        said,
    )
    assert "153,600,000," in said
    assert main([*arguments, "1000"]) == 2
    assert "it measured" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["bench", "convert", "inspect"])
def test_pictures_are_png(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said before any work: there is no checkpoint either."""
    before = {"bench": [], "convert": ["none", "out", "--to", "fp8"], "inspect": ["none"]}[command]
    for name in ("a.xyz", "png", "a.png.txt"):
        assert main([command, *before, "--plot", str(tmp_path / name)]) == 2
        assert f"argument --plot: must end in .png, got '{tmp_path / name}'\n" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_shipped_rates_read_back(tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    file.write_text(json.dumps(SHIPPED.to_json()))
    rates = read_rates(file)
    assert rates == Rates(
        SHIPPED.hardware, f"measured, {file}", SHIPPED.embed_us, SHIPPED.host_to_device, SHIPPED.peer,
        SHIPPED.pinned_row_ns, SHIPPED.staged_start_us, SHIPPED.staged_row_ns,
    )  # fmt: skip


WRONG = [
    ("{", "rates.json"),
    ("{}", "hardware must be a string"),
    ('{"hardware": "x"}', "embed_us must be an object"),
    ('{"hardware": "x", "embed_us": {"cpu": []}}', "embed_us['cpu'] must be an object"),
    ('{"hardware": "x", "embed_us": {"cpu": {"bf16": {"0": 1}}}}', "must have numbers of tokens as names"),
    ('{"hardware": "x", "embed_us": {"cpu": {"bf16": {"8": 0}}}}', "must be a positive number, got 0"),
    ('{"hardware": "x", "embed_us": {}, "peer": -1}', "peer must be a positive number, got -1"),
    ('{"hardware": "x", "embed_us": {}, "pinned_row_ns": true}', "pinned_row_ns must be a positive number"),
]


@pytest.mark.parametrize(("content", "said"), WRONG)
def test_rates_that_are_none(content: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    file.write_text(content)
    with pytest.raises(ConfigError) as error:
        read_rates(file)
    assert said in str(error.value)
    with pytest.raises(ConfigError, match="No such file"):
        read_rates(tmp_path / "none.json")
