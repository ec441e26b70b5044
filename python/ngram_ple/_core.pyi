class HashPlan:
    multipliers: list[int]
    head_sizes: list[int]
    head_offsets: list[int]
    num_rows: int
    padded_rows: int

class RowFormat:
    head_dim: int
    row_bytes: int
    scale_bytes: int
    scale_offset: int
    slot_bytes: int
    has_global_scale: bool

class PinnedRegion:
    address: int
    nbytes: int
    pieces: int
    def __init__(
        self,
        nbytes: int,
        device: int | None,
        piece_bytes: int = ...,
        threads: int = 0,
        *,
        file: int = -1,
        present: bool = False,
    ) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def huge_bytes(self) -> int: ...
    def close(self) -> None: ...

def new_stream(device: int) -> int: ...
def capture_id(stream: int) -> int: ...
def hash_plan(
    ngram_size: int,
    heads_per_ngram: int,
    vocab_size: int,
    ngram_vocab_size_base: int,
    divisible_by: int,
    seed: int,
    layer: int,
) -> HashPlan: ...
def row_format(name: str, head_dim: int) -> RowFormat: ...
def is_prime(n: int) -> bool: ...
def next_prime(n: int) -> int: ...
def splitmix64(x: int) -> int: ...
def advise_huge_pages(address: int, bytes: int) -> bool: ...
def read_slots(
    format: str,
    head_dim: int,
    num_rows: int,
    rows_fd: int,
    rows_offset: int,
    scales_fd: int,
    scales_offset: int,
    scale_dtype: str,
    slots: int,
) -> tuple[str, int, int]: ...

class EncodeError:
    squared_error: float
    squared_value: float
    largest_error: float
    saturated: int
    zeroed: int
    not_finite: int
    first_not_finite: int

def largest_magnitude(source: str, count: int, values: int, finite_only: bool) -> float: ...
def encode_rows(
    source: str,
    format: str,
    head_dim: int,
    global_scale: float,
    scale_is_bf16: bool,
    num_rows: int,
    values: int,
    rows: int,
    scales: int,
) -> EncodeError: ...
