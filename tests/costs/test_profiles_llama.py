"""The A800 profiles against what their source publishes: coefficients, and memory by its B.1."""

import math
from dataclasses import dataclass
from fractions import Fraction

import pytest

from seqplan import Profile, Scheme
from seqplan.costs.shipped.catalogue import load_shipped

CAPACITY, CONTEXT, VOCAB, ALPHA = 85_198_897_152, 5_242_880_000, 30_592, Fraction(3, 4)


@dataclass(frozen=True)
class Published:
    """The source's constants of one model; ``activation``: tp → bytes/(token·hidden·layer)."""

    hidden: int
    layers: int
    state: int
    margin: int
    activation: dict[int, int]

    def max_len(self, tp: int, pp: int, gpus: int) -> int:
        """Appendix B.1 as its source writes it, in exact arithmetic."""
        square, table = self.hidden**2, self.hidden * VOCAB
        fixed = (
            self.layers * square * self.state * ALPHA / gpus
            + Fraction(self.layers, pp) * Fraction(square, tp) * self.state * (1 - ALPHA)
            + table * 32 * ALPHA / gpus
            + Fraction(table, tp) * (32 if pp == 1 else 16) * (1 - ALPHA)
            + CONTEXT
        )
        per_token = Fraction(self.layers * self.hidden * self.activation[tp], tp)
        return max(0, math.floor((CAPACITY - self.margin - fixed) / per_token))


PUBLISHED = {
    "llama-7b-a800-80gb": Published(
        4096, 32, 210, 6_442_450_944, {1: 38, 2: 39, 4: 42, 8: 48, 16: 61}
    ),
    "llama-13b-a800-80gb": Published(5120, 40, 210, 8_589_934_592, {1: 38, 2: 39, 4: 39, 8: 48}),
    "llama-32b-a800-80gb": Published(
        6656, 60, 201, 10_737_418_240, {1: 36, 2: 36, 4: 37, 8: 42, 16: 50}
    ),
}

SCHEMES = {
    "llama-7b-a800-80gb": "pp2 pp4 pp8 tp2 tp2.pp2 tp2.pp4 tp2.pp8 tp4 tp4.pp2 tp4.pp4 tp8 tp8.pp2 "
    "tp16",
    "llama-13b-a800-80gb": "tp1 pp2 pp4 pp8 tp2 tp2.pp2 tp2.pp4 tp2.pp8 tp4 tp4.pp2 tp4.pp4 tp8",
    "llama-32b-a800-80gb": "pp2 pp4 tp2 tp2.pp2 tp2.pp4 tp2.pp6 tp4 tp4.pp2 tp4.pp4 tp4.pp6 tp8 "
    "tp8.pp2 tp8.pp3 tp8.pp4 tp16",
}


def max_len(profile: Profile, scheme: str, gpus: int, shards: int | None = None) -> int:
    return profile.model(profile.by_scheme[Scheme.parse(scheme)], gpus, 32768, shards).max_len


@pytest.mark.parametrize(
    ("name", "scheme", "gpus", "tokens"),
    [
        ("llama-32b-a800-80gb", "tp16", 64, 43614),
        ("llama-32b-a800-80gb", "tp8", 64, 21930),
        ("llama-32b-a800-80gb", "tp4", 64, 7872),
        ("llama-32b-a800-80gb", "tp4.pp2", 64, 12447),
        ("llama-32b-a800-80gb", "pp2", 64, 0),
        ("llama-7b-a800-80gb", "tp16", 16, 132509),
        ("llama-7b-a800-80gb", "pp2", 16, 10730),
    ],
)
def test_known_values_of_max_len(name: str, scheme: str, gpus: int, tokens: int) -> None:
    assert max_len(load_shipped(name), scheme, gpus) == tokens


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("gpus", [1, 2, 5, 8, 16, 24, 64, 100, 256, 1024])
def test_max_len_is_the_formula_for_every_scheme(name: str, gpus: int) -> None:
    profile, published = load_shipped(name).restrict(measured=True), PUBLISHED[name]
    for entry in profile.schemes:
        scheme = entry.scheme
        expected = published.max_len(scheme.tp, scheme.pp, gpus)
        assert max_len(profile, str(scheme), gpus) == expected, scheme
        # Sharding over some of the ranks only is the formula with that many.
        assert max_len(profile, str(scheme), 4096, gpus) == expected, scheme


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_scheme_is_there(name: str) -> None:
    listed = {Scheme.parse(text) for text in SCHEMES[name].split()}
    measured = load_shipped(name).restrict(measured=True)
    assert {entry.scheme for entry in measured.schemes} == listed


@pytest.mark.parametrize(
    ("name", "scheme", "a", "b", "c"),
    [
        ("llama-7b-a800-80gb", "pp2", 1.37240947e-06, 0.094647781, 15.047058823529596),
        ("llama-7b-a800-80gb", "tp16", 3.01808129e-07, 0.0292311085, 65.23634593993279),
        ("llama-13b-a800-80gb", "tp1", 1.03359006e-05, 0.312262914, 91.37538699690367),
        ("llama-13b-a800-80gb", "tp4.pp4", 3.94357054e-07, 0.0259475095, 18.2104987061378),
        ("llama-32b-a800-80gb", "pp2", 0.0, 0.48988971, 22.882352941176805),
        ("llama-32b-a800-80gb", "tp2", 2.97455561e-05, 0.386957078, 156.2008928571429),
        ("llama-32b-a800-80gb", "tp4.pp6", 7.02993498e-07, 0.039850898, 24.07199162618781),
        ("llama-32b-a800-80gb", "tp8.pp3", 6.85518086e-07, 0.0482754236, 38.06972982282218),
        ("llama-32b-a800-80gb", "tp16", 1.37779723e-06, 0.102435387, 145.74761115393085),
    ],
)
def test_coefficients_are_the_published_ones(
    name: str, scheme: str, a: float, b: float, c: float
) -> None:
    latency = load_shipped(name).by_scheme[Scheme.parse(scheme)].latency
    assert (latency.a, latency.b, latency.c) == (a, b, c)


@pytest.mark.parametrize("name", PUBLISHED)
def test_max_len_grows_with_gpus_and_with_shards(name: str) -> None:
    profile = load_shipped(name)
    for entry in profile.schemes:
        by_gpus = [max_len(profile, str(entry.scheme), n) for n in range(1, 200, 7)]
        by_shards = [max_len(profile, str(entry.scheme), 256, n) for n in range(1, 200, 7)]
        assert by_gpus == sorted(by_gpus)
        assert by_gpus[-1] > by_gpus[0] or by_gpus[-1] == 0
        assert by_shards == by_gpus


def test_the_flagged_scheme_is_left_out_by_default() -> None:
    profile = load_shipped("llama-32b-a800-80gb")
    flagged = [entry.scheme for entry in profile.schemes if entry.flag]
    assert flagged == [Scheme.parse("pp2")]

    def usable(include: bool) -> set[Scheme]:
        # On this many GPUs memory would let the scheme in.
        return {m.scheme for m in profile.usable(4096, 32768, include_flagged=include)}

    assert usable(True) - usable(False) == set(flagged)


def test_usable_schemes_fit_the_gpus_and_hold_a_token() -> None:
    profile = load_shipped("llama-32b-a800-80gb")
    assert profile.usable(1, 4096) == []
    for gpus in (8, 12, 16, 64):
        models = profile.usable(gpus, 4096)
        expected = {
            entry.scheme
            for entry in profile.schemes
            if entry.scheme.gpus <= gpus
            and not entry.flag
            and max_len(profile, str(entry.scheme), gpus) >= entry.scheme.stage_gpus
        }
        assert {model.scheme for model in models} == expected
        assert all(model.capacity % model.scheme.stage_gpus == 0 for model in models)
        assert all(0 <= model.max_len - model.capacity < model.scheme.gpus for model in models)
