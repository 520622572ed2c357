from seqplan.planner.placement.fleet import ClassPlacement, Floats, Ints

SOURCE: str

def make_costs(
    lengths: Ints,
    padded: Ints,
    work: Floats,
    preferred: Ints,
    cheap_from: Ints,
    held_from: Ints,
    coefficients: Floats,
    capacities: Ints,
    pp: int,
    of_many: float,
    of_few: float,
    spread: float,
    equal_up_to: int,
    together: int,
    shares: Floats,
    weights: Floats,
    /,
) -> object: ...
def fill_class(
    costs: object,
    counts: Ints,
    count: int,
    reach: int,
    forced_above: int,
    target_ms: float,
    most: int,
    /,
) -> tuple[bytes, tuple[float, ...], int, int]: ...
def fill_micro_steps(
    classes: tuple[tuple[object, int], ...],
    ranks: int,
    counts: Ints,
    targets_ms: Floats,
    alone_ms: Floats,
    most: int,
    shares: Floats,
    /,
) -> tuple[list[tuple[list[tuple[int, bytes, int]], float]], int]: ...
def unpack(placement: bytes, count: int, /) -> ClassPlacement: ...
def exchange(
    classes: tuple[tuple[object, bytes, int, tuple[float, ...]], ...],
    lower_ms: float,
    drawn: int,
    fruitless: int,
    from_slowest: float,
    within: float,
    moves: float,
    swaps: float,
    places: float,
    shorter: float,
    /,
) -> tuple[bytes, ...] | None: ...
def exchange_sized(
    arrays: tuple[Floats | Ints, ...],
    limits: tuple[float, float, float, float],
    numbers: tuple[int, int, int, int],
    /,
) -> tuple[int, int, int]: ...
def assign_sized(arrays: tuple[Floats | Ints, ...], to_assign: float, /) -> None: ...
def choose_sizes(
    arrays: tuple[Floats | Ints, ...],
    limits: tuple[float, float, float, float, float, float, float, float],
    numbers: tuple[int, int, int],
    /,
) -> tuple[int, int]: ...
