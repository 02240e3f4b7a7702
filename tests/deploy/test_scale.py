"""The simulation of many servers loses no turn and shows the effect of more servers."""

from bench.scale import WARM_UP, Costs, Load, Simulation, quantile, saturations

SMALL = Load(users=2_000, running=100, servers=4, minutes=4, kills=3)
CROWDED = Load(users=2_000, running=400, servers=2, minutes=4, kills=0)


def test_no_turn_is_lost_and_equal_seeds_give_equal_runs() -> None:
    simulation = Simulation(SMALL, Costs())
    figures = simulation.run()
    assert figures.begun == figures.ended + simulation.unfinished
    assert figures.takeovers > 0
    assert max(figures.interruptions) >= Costs().lease
    assert len(figures.commits) > SMALL.minutes * 60 - WARM_UP - 5
    repeated = Simulation(SMALL, Costs()).run()
    assert (repeated.begun, repeated.ended, repeated.delays) == (figures.begun, figures.ended, figures.delays)


def test_turns_wait_for_free_child_servers_and_health_names_the_limit() -> None:
    crowded = Simulation(CROWDED, Costs()).run()
    roomy = Simulation(Load(users=2_000, running=400, servers=8, minutes=4, kills=0), Costs()).run()
    assert quantile(crowded.delays, 0.95) > 10 * quantile(roomy.delays, 0.95)
    factor, full, _ = saturations(crowded, CROWDED, Costs())[0]
    assert factor < 1
    assert full.startswith("processors")
