from seqplan.planner.placement.fleet import ClassPlacement, Floats, Ints

SOURCE: str

def fill_class(
    lengths: Ints,
    counts: Ints,
    pp: int,
    a: float,
    b: float,
    c: float,
    capacity: int,
    unit: int,
    count: int,
    reach: int,
    forced_above: int,
    target_ms: float,
    ceiling_ms: float,
    new_first: bool,
    /,
) -> tuple[bytes, tuple[float, ...], int]: ...
def unpack(placement: bytes, count: int, /) -> ClassPlacement: ...
def fill_modes(
    lengths: Ints,
    counts: Ints,
    padded: Ints,
    work: Floats,
    preferred: Ints,
    cheap_from: Ints,
    held_from: Ints,
    coefficients: Floats,
    capacities: Ints,
    pp: int,
    unit: int,
    count: int,
    reach: int,
    forced_above: int,
    target_ms: float,
    ceiling_ms: float,
    new_first: bool,
    /,
) -> tuple[bytes, tuple[float, ...], int]: ...
