"""The simulator: whole fabrics whose hosts run the production engine.

from softmrc import sim

result = sim.run("scenarios/t1-reboot.toml", seed=7)
result.fct_us, result.goodput_bps            # NumPy arrays
pandas.DataFrame(result.table())             # one row a flow
results = sim.run_all("scenarios/victim.toml")   # with everything it is compared with
"""

from softmrc.sim.fabric import Fabric
from softmrc.sim.result import Result, Verdict
from softmrc.sim.run import Progress, run, run_all
from softmrc.sim.scenario import Queues, RunSettings, Scenario, Transport, load, parse

__all__ = [
    "Fabric",
    "Progress",
    "Queues",
    "Result",
    "RunSettings",
    "Scenario",
    "Transport",
    "Verdict",
    "load",
    "parse",
    "run",
    "run_all",
]
