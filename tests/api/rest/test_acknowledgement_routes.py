"""Acknowledgements, of one rank and of many."""

from stocked_service import WORLD, Stocked


def test_all_ranks_acknowledge_at_once(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("at-once", steps=2)
    assert served.send("GET", f"/v1/jobs/{job}/plans/1?wait=30").status == 200
    path = f"/v1/jobs/{job}/acks/many"
    acknowledgement = {
        "step": 0,
        "ranks": [0, 1, 3],
        "digest": None,
        "measured_ms": [5.0, None, 7.5],
    }
    for _ in range(2):
        assert served.ok("POST", path, acknowledgement) == {"step": 0, "ranks": [0, 1, 3]}
    assert served.ok("GET", f"/v1/jobs/{job}")["acknowledged"] == [0, 0, -1, 0]
    measured = served.ok("GET", f"/v1/jobs/{job}/measurements")["items"]
    assert [(row["rank"], row["measured_ms"]) for row in measured] == [(0, 5.0), (3, 7.5)]
    # All of them or none.
    problem = served.problem("POST", path, {"step": 0, "ranks": [2, WORLD], "digest": None})
    assert problem["detail"] == f"rank: {WORLD} is not below {WORLD}"
    problem = served.problem("POST", path, {**acknowledgement, "measured_ms": [1.0]})
    assert problem["detail"] == "body.measured_ms: has 1 figures for 3 ranks"
    served.problem("POST", path, {"step": 0, "ranks": [], "digest": None})
    served.problem("POST", path, {"step": 5, "ranks": [2], "digest": None}, 409)
    assert served.ok("GET", f"/v1/jobs/{job}")["acknowledged"] == [0, 0, -1, 0]


def test_bad_acknowledgements(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("acks", 9, look_ahead=1)
    served.send("GET", f"/v1/jobs/{job}/plans/0?wait=30")
    path, ack = f"/v1/jobs/{job}/acks", {"step": 0, "rank": 0, "digest": None}
    assert served.problem("POST", path, {**ack, "step": 5}, 409)["last_step"] == 0
    assert served.problem("POST", path, {**ack, "rank": WORLD})
    other = {**ack, "digest": "sha256:" + "0" * 64}
    assert served.problem("POST", path, other, 409)["type"].endswith("other-plan")
    assert served.ok("GET", f"/v1/jobs/{job}")["acknowledged"] == [-1] * WORLD
