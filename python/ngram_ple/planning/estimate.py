"""Each format in each place: memory, traffic, time; and one of them recommended.

Bytes of tables, and those that a token moves between memories, are counted; times come from `Rates`. All rows
of a batch are taken as distinct and anywhere in the table, which is what an even hash does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ngram_ple.config import NGramConfig
from ngram_ple.convert import TARGETS
from ngram_ple.errors import ConfigError
from ngram_ple.formats import RowFormat, row_format
from ngram_ple.hash_plan import HashPlan
from ngram_ple.planning.rates import MEASURED_HEAD_DIM, MEASURED_HEADS, Rates

RELATIVE_ERROR = {
    "fp32": 0.0, "fp16": 0.0, "bf16": 0.0, "fp8-rowwise": 0.026, "fp8": 0.026, "nvfp4": 0.095,
}  # fmt: skip
"""Relative RMS error that a format adds to Gaussian rows (bf16: to a model that computes in bf16)."""

_SLOWER_FOR_ACCURACY = 3.0
_GIB = 1 << 30


@dataclass(frozen=True)
class Machine:
    """What there is for the tables.

    Attributes
    ----------
    gpus : int
        Of one host; 0 for a host without.
    gpu_memory, host_memory : float
        Bytes on each GPU and in the host, after all that else needs them.
    """

    gpus: int
    gpu_memory: float
    host_memory: float


@dataclass(frozen=True)
class Option:
    """All tables of the model in one format at one place.

    Attributes
    ----------
    format, placement : str
        Placements: "device" (each GPU holds all rows), "device / N" (N GPUs hold a part each), "pinned" (one
        copy in host memory, which GPUs read in place or by way of CPU workers), "cpu".
    gpu_bytes, host_bytes : int
        On each GPU, and in the host in all.
    link : str
        What a token's rows travel over: "", "NVLink", "PCIe".
    link_bytes : float
        Bytes of one token over it, on average, for all layers.
    time_us : float or None
        For the batch, all layers; None where no rate is known.
    extrapolated_from : int or None
        The largest batch that was measured, where `time_us` is for more than four times its size.
    relative_error : float
        Of this format, or of the stored one where that is larger.
    why_not : str
        Why it does not fit; empty when it does.
    """

    format: str
    placement: str
    gpu_bytes: int
    host_bytes: int
    link: str
    link_bytes: float
    time_us: float | None
    extrapolated_from: int | None
    relative_error: float
    why_not: str

    @property
    def fits(self) -> bool:
        """Whether the machine has room for it."""
        return not self.why_not


@dataclass(frozen=True)
class Plan:
    """Every option, and the recommended one with its reason; None where nothing fits."""

    stored_format: str
    layers: int
    rows: int
    tokens: int
    options: list[Option]
    recommended: Option | None
    reason: str


def make_plan(
    configs: Sequence[NGramConfig],
    machine: Machine,
    rates: Rates,
    *,
    stored_format: str,
    tokens: int = 8192,
    max_tokens: int | None = None,
) -> Plan:
    """Weigh formats and placements.

    Parameters
    ----------
    configs : sequence of NGramConfig
        One for each PLE layer.
    machine : Machine
    rates : Rates
    stored_format : str
        What the checkpoint has: no format is more accurate than that.
    tokens : int
        The batch that times are for.
    max_tokens : int, optional
        The largest batch, for which pinned tables have buffers; `tokens` by default.

    Raises
    ------
    ConfigError
        No layer, or sizes that cannot be.
    """
    if not configs:
        raise ConfigError("configs must have at least one PLE layer, got none")
    model = _Model(configs, tokens, max_tokens or tokens, stored_format)
    options = []
    for format in model.formats:
        if machine.gpus:
            options.append(model.on_device(format, machine, rates, 1))
            if machine.gpus > 1:
                options.append(model.on_device(format, machine, rates, machine.gpus))
            options.append(model.pinned(format, machine, rates))
        else:
            options.append(model.on_cpu(format, machine, rates))
    chosen, reason = _recommend(options)
    return Plan(stored_format, len(configs), model.rows, tokens, options, chosen, reason)


@dataclass(frozen=True)
class _Time:
    us: float
    extrapolated_from: int | None = None

    def plus(self, us: float) -> _Time:
        return _Time(self.us + us, self.extrapolated_from)


class _Model:
    def __init__(
        self, configs: Sequence[NGramConfig], tokens: int, max_tokens: int, stored_format: str
    ) -> None:
        self._layers = len(configs)
        self._heads, self._head_dim = configs[0].num_heads, configs[0].head_dim
        self.formats = [name for name in TARGETS if name != "nvfp4" or self._head_dim % 16 == 0]
        self._padded_rows = [HashPlan.from_config(config).padded_rows for config in configs]
        self.rows = sum(self._padded_rows)
        self._tokens, self._max_tokens = tokens, max_tokens
        self._stored_error = RELATIVE_ERROR[stored_format]

    def on_device(self, format: str, machine: Machine, rates: Rates, parts: int) -> Option:
        geometry = row_format(format, self._head_dim)
        nbytes = sum(-(-rows // parts) for rows in self._padded_rows) * geometry.slot_bytes
        away = self._row_bytes(geometry) * (parts - 1) / parts
        time = self._embed_time("device", geometry, rates)
        if time is not None and parts > 1:
            time = None if rates.peer is None else time.plus(self._tokens * away / rates.peer * 1e6)
        why = _too_much("each GPU", nbytes, machine.gpu_memory)
        placement = "device" if parts == 1 else f"device / {parts}"
        return self._option(format, placement, nbytes, 0, "NVLink" if parts > 1 else "", away, time, why)

    def pinned(self, format: str, machine: Machine, rates: Rates) -> Option:
        geometry = row_format(format, self._head_dim)
        nbytes = self.rows * geometry.slot_bytes
        buffers = self._layers * self._max_tokens * self._heads * self._head_dim * 2
        moved = self._row_bytes(geometry)
        time = self._pinned_time(geometry, rates)
        why = _too_much("the host", nbytes, machine.host_memory)
        why = why or _too_much("each GPU (buffers)", buffers, machine.gpu_memory)
        return self._option(format, "pinned", buffers, nbytes, "PCIe", moved, time, why)

    def _pinned_time(self, geometry: RowFormat, rates: Rates) -> _Time | None:
        """Time of all layers, rows read in place or gathered by workers, whichever is faster.

        Few rows take a launch all the same: no less than rows on the device, and their bytes over the bus.
        Not known where that of rows on the device is not: plans would compare what was measured with a guess.
        """
        if rates.host_to_device is None or rates.pinned_row_ns is None:
            return None
        on_device = self._embed_time("device", geometry, rates)
        if on_device is None:
            return None
        known = [self._embed_time("device", row_format(name, self._head_dim), rates) for name in self.formats]
        slowest = max((one for one in known if one is not None), key=lambda one: one.us)
        rows = self._tokens * self._heads
        by_bytes = geometry.slot_bytes / rates.host_to_device * 1e9  # ns a row
        time = rows * max(by_bytes, rates.pinned_row_ns) / 1e3
        if rates.staged_start_us is not None and rates.staged_row_ns is not None:
            staged = rates.staged_start_us + rows * max(by_bytes, rates.staged_row_ns) / 1e3
            time = min(time, staged)
        least = slowest.plus(self._layers * rows * by_bytes / 1e3)
        return _Time(max(least.us, self._layers * time), on_device.extrapolated_from)

    def on_cpu(self, format: str, machine: Machine, rates: Rates) -> Option:
        geometry = row_format(format, self._head_dim)
        nbytes = self.rows * geometry.slot_bytes
        time = self._embed_time("cpu", geometry, rates)
        why = _too_much("the host", nbytes, machine.host_memory)
        return self._option(format, "cpu", 0, nbytes, "", 0.0, time, why)

    def _option(
        self, format: str, placement: str, gpu: int, host: int, link: str, moved: float,
        time: _Time | None, why: str,
    ) -> Option:  # fmt: skip
        error = max(self._stored_error, RELATIVE_ERROR[format])
        us, beyond = (None, None) if time is None else (time.us, time.extrapolated_from)
        return Option(format, placement, gpu, host, link, moved, us, beyond, error, why)

    def _row_bytes(self, geometry: RowFormat) -> int:
        """Count the stored bytes of a token's rows, all layers."""
        return self._layers * self._heads * geometry.slot_bytes

    def _embed_time(self, placement: str, geometry: RowFormat, rates: Rates) -> _Time | None:
        """Time of all layers, by the bytes that a token's rows move: read as stored, written in bf16."""
        name = geometry.name
        measured = row_format("fp8" if name == "fp8-rowwise" else name, MEASURED_HEAD_DIM)
        if rates.embed_us.get(placement, {}).get(name):
            measured = row_format(name, MEASURED_HEAD_DIM)
        moved = self._heads * (geometry.slot_bytes + 2 * self._head_dim)
        ratio = moved / (MEASURED_HEADS * (measured.slot_bytes + 2 * MEASURED_HEAD_DIM))
        one = rates.embed_time(placement, measured.name, self._tokens, ratio)
        if one is None:
            return None
        beyond = rates.extrapolated_from(placement, measured.name, self._tokens, ratio)
        return _Time(self._layers * one, beyond)


def _too_much(where: str, needed: float, there: float) -> str:
    return f"{where} needs {_gib(needed)} GiB, has {_gib(there)}" if needed > there else ""


def _gib(nbytes: float) -> str:
    return f"{nbytes / _GIB:.1f}" if nbytes >= _GIB else f"{nbytes / _GIB:.2g}"


def _recommend(options: Sequence[Option]) -> tuple[Option | None, str]:
    fitting = [one for one in options if one.fits]
    if not fitting:
        least = min(options, key=lambda one: max(one.gpu_bytes, one.host_bytes))
        return None, f"nothing fits; the smallest is {least.format}, {least.placement}: {least.why_not}"
    timed = [one for one in fitting if one.time_us is not None]
    if not timed:
        best = min(fitting, key=lambda one: (one.relative_error, one.host_bytes + one.gpu_bytes))
        return best, "the most accurate one that fits (no times are known; ngram-ple bench --save measures)"

    def spent(one: Option) -> float:
        assert one.time_us is not None
        return one.time_us

    known = " of those whose time is known" if len(timed) < len(fitting) else ""
    fastest = min(timed, key=lambda one: (spent(one), one.relative_error))
    shortest = spent(fastest)
    near = [one for one in timed if spent(one) <= _SLOWER_FOR_ACCURACY * shortest]
    best = min(near, key=lambda one: (one.relative_error, spent(one), one.gpu_bytes + one.host_bytes))
    if best is fastest:
        more = [one for one in options if one.relative_error < best.relative_error]
        reason = f"the fastest one that fits{known}"
        if not more:
            return best, f"{reason}, and none is more accurate"
        unknown = {one.time_us is None for one in more if one.fits}
        if not unknown:
            return best, f"{reason}; more accurate ones do not fit"
        if unknown == {True}:
            return best, f"{reason}; the time of more accurate ones is not known"
        slower = f"more accurate ones take more than {_SLOWER_FOR_ACCURACY:g} times as long"
        return best, f"{reason}; {slower}{', or their time is not known' if True in unknown else ''}"
    return best, (
        f"the most accurate one within {_SLOWER_FOR_ACCURACY:g} times the fastest that fits{known} "
        f"({fastest.format}, {fastest.placement}: {shortest:.{0 if shortest >= 100 else 1}f} us)"
    )
