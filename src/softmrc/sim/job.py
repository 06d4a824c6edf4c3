"""A training job: a transformer, cut over ranks by data, tensor, pipeline and expert parallelism, step by step.

What a rank computes takes time and nothing else; what it sends is sent. A rank is a host of the fabric: a GPU and its
NIC. Ranks are numbered tensor first, then data, then pipeline, as Megatron numbers them.
docs/guides/training-jobs.md has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from softmrc._support.tables import refuse, setting
from softmrc.errors import ConfigError
from softmrc.sim.fabric import Fabric
from softmrc.sim.prng import Prng
from softmrc.sim.programs import COMPUTE, SCALE_UP, CollectiveTask, Programs, ReceiveTask, SendTask, Task, lay_out
from softmrc.sim.traffic import ORDERS, PS_PER_US, TrafficPlan, Workload

MAX_TASKS = 2_000_000
BACKWARD = 2  # times the forward pass


@dataclass(frozen=True)
class Model:
    """[workload.model]: the transformer. Embeddings are left out."""

    layers: int = setting(low=1, high=4096)
    hidden: int = setting(low=1, high=1 << 20)
    sequence: int = setting(2048, low=1, high=1 << 24)
    ffn: int = setting(0, low=0, high=1 << 24)  # 0: four times hidden
    ffn_matrices: int = setting(2, low=1, high=3)  # 3 where it is gated
    parameters: float = setting(0.0, low=0, high=1e15)  # of all layers; 0: worked out of hidden and ffn
    experts: int = setting(0, low=0, high=65536)  # of every layer; 0: it is dense
    top_k: int = setting(2, low=1, high=1024)  # experts that a token sees
    value_bytes: int = setting(2, low=1, high=8)  # of an activation, and of a gradient

    @property
    def attention_parameters(self) -> float:
        """Of a layer, with everything that is no expert."""
        if self.parameters:
            return self.parameters / self.layers - max(self.experts, 1) * self.ffn_parameters
        return 4 * self.hidden**2

    @property
    def ffn_parameters(self) -> float:
        """Of a layer, and there of one expert."""
        return self.ffn_matrices * self.hidden * (self.ffn or 4 * self.hidden)


@dataclass(frozen=True)
class Parallel:
    """[workload.parallel]: how it is cut, and what is sent when."""

    dp: int = setting(1, low=1, high=65536)
    tp: int = setting(1, low=1, high=65536)
    pp: int = setting(1, low=1, high=4096)
    ep: int = setting(1, low=1, high=65536)  # of the data-parallel ranks, so many share the experts
    micro_batches: int = setting(1, low=1, high=65536)  # of a step, on each data-parallel rank
    micro_batch: int = setting(1, low=1, high=65536)  # sequences in each
    overlap: bool = True  # gradients are reduced as soon as they are there; else after all of them are
    bucket_bytes: int = setting(25 << 20, low=4)  # gradients are reduced together up to this

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp


@dataclass(frozen=True)
class Gpu:
    """[workload.gpu]: how fast a rank computes."""

    flops: float = setting(989e12, above=0)  # a second, at the most
    efficiency: float = setting(0.5, above=0, high=1)  # the share of it that kernels reach
    forward_us: float = setting(0.0, low=0)  # of a layer and micro-batch on a rank, instead of both
    update_us: float = setting(0.0, low=0)  # of the optimizer
    recompute: bool = False  # of the forward pass, in the backward pass
    scale_up_bps: float = setting(0.0, low=0)  # tensor parallelism stays inside a host, at this rate; 0: it does not


@dataclass(frozen=True, kw_only=True)
class Job(Workload):
    """Steps of training, forward and backward in the order 1F1B."""

    model: Model = setting()
    parallel: Parallel = setting(Parallel())
    gpu: Gpu = setting(Gpu())
    steps: int = setting(1, low=1, high=10000)
    order: str = setting("hosts", choices=ORDERS)
    algorithm: str = ""  # of collectives, wherever it is possible, instead of the one that ranks would choose

    def plan(self, plan: TrafficPlan, fabric: Fabric, draws: Prng, source: str, key: str) -> None:
        self._check(fabric, source, key)
        p = self.parallel
        ranks = p.ranks
        hosts = self.hosts_of(fabric, source, key, ranks, self.order, draws) if ranks > 1 else [0]

        def wrong(rank: int, task: int, words: str) -> ConfigError:
            return refuse(source, key, f"task {task} of rank {rank}", words)

        programs = Programs(ranks, wrong)
        for rank in range(ranks):
            _Rank(self, rank, programs).run()
        lay_out(programs, plan, hosts, self.start_ps)

    def _check(self, fabric: Fabric, source: str, key: str) -> None:
        m, p = self.model, self.parallel

        def need(holds: bool, name: str, value: object, problem: str) -> None:
            if not holds:
                raise refuse(source, f"{key}.{name}", value, problem)

        words = f"must make dp × tp × pp at most the fabric's {fabric.hosts} hosts, and makes {p.ranks}"
        need(p.ranks <= fabric.hosts, "parallel.dp", p.dp, words)
        need(m.layers % p.pp == 0, "parallel.pp", p.pp, f"must divide the number of layers, {m.layers}")
        need(p.dp % p.ep == 0, "parallel.ep", p.ep, f"must divide dp = {p.dp}")
        need(p.ep == 1 or m.experts > 0, "parallel.ep", p.ep, "must be 1 where model.experts is 0")
        need(m.experts % p.ep == 0, "model.experts", m.experts, f"must be a multiple of ep = {p.ep}")
        need(not m.experts or m.top_k <= m.experts, "model.top_k", m.top_k, f"must be at most experts = {m.experts}")
        least = m.layers * max(m.experts, 1) * m.ffn_parameters
        words = f"must be more than the {least:,.0f} that hidden, ffn and experts make without attention"
        need(m.attention_parameters > 0, "model.parameters", m.parameters, words)
        tasks = p.ranks * self.steps * p.micro_batches * (m.layers // p.pp * 12 + 4)
        need(
            tasks <= MAX_TASKS,
            "steps",
            self.steps,
            f"must be less: this makes about {tasks:,} tasks of at most {MAX_TASKS:,}",
        )

    @cached_property
    def tokens(self) -> int:
        """Of a micro-batch."""
        return self.parallel.micro_batch * self.model.sequence

    def layer_flops(self) -> tuple[float, float]:
        """Forward, on one rank: what comes before the experts or the FFN, and those."""
        m = self.model
        attention = self.tokens * (2 * m.attention_parameters + 4 * m.sequence * m.hidden)
        ffn = self.tokens * 2 * m.ffn_parameters * (m.top_k if m.experts else 1)
        return attention / self.parallel.tp, ffn / self.parallel.tp

    def layer_ps(self) -> tuple[int, int]:
        """The same as time."""
        attention, ffn = self.layer_flops()
        g = self.gpu
        whole = g.forward_us * PS_PER_US or (attention + ffn) / (g.flops * g.efficiency) * 1e12
        first = round(whole * attention / (attention + ffn))
        return first, round(whole) - first

    def step_flops(self) -> float:
        """Of the model, on each rank: recomputing is not counted."""
        p = self.parallel
        return sum(self.layer_flops()) * (1 + BACKWARD) * self.model.layers / p.pp * p.micro_batches

    def gradient_bytes(self) -> tuple[int, int]:
        """Of a layer, on one rank: of what all data-parallel ranks have, and of its experts."""
        m, p = self.model, self.parallel
        shared, experts = m.attention_parameters, 0.0
        if m.experts:
            experts = m.ffn_parameters * m.experts / p.ep
        else:
            shared += m.ffn_parameters
        return _whole(shared / p.tp * m.value_bytes), _whole(experts / p.tp * m.value_bytes)


def _whole(size: float) -> int:
    """Elements have four bytes."""
    return -(-round(size) // 4) * 4


class _Rank:
    """What one rank does, written down in order."""

    def __init__(self, job: Job, rank: int, programs: Programs) -> None:
        self.job, self.rank, self.programs = job, rank, programs
        p = job.parallel
        self.tensor, self.data, self.stage = rank % p.tp, rank // p.tp % p.dp, rank // p.tp // p.dp
        self.layers = job.model.layers // p.pp
        self.last: tuple[int, ...] = ()  # what the rank did before: it computes one thing at a time
        self.before: dict[str, int] = {}  # the last call in each group: they follow each other, as on a stream
        self.gradients: list[int] = []  # calls of this step
        self.step = 0
        self.forward_ps = job.layer_ps()
        times = BACKWARD + job.gpu.recompute
        self.backward_ps = tuple(times * one for one in self.forward_ps)
        self.activation = _whole(job.tokens * job.model.hidden * job.model.value_bytes)
        self.per_expert_rank = _whole(self.activation * job.model.top_k / p.ep / p.tp)
        self.buckets = {False: 0, True: 0}  # bytes that wait to be reduced; of experts or not
        self.bucket = p.bucket_bytes // 4 * 4

    def run(self) -> None:
        p = self.job.parallel
        for step in range(self.job.steps):
            self.step = step
            warm = min(p.pp - 1 - self.stage, p.micro_batches)
            for batch in range(warm):
                self._forward(batch)
            for batch in range(p.micro_batches - warm):
                self._forward(batch + warm)
                self._backward(batch)
            for batch in range(p.micro_batches - warm, p.micro_batches):
                self._backward(batch)
            self._reduce_all()
            self._compute(round(self.job.gpu.update_us * PS_PER_US), also=self.gradients)
            self.gradients = []

    # Which ranks share what.

    def _tensor_group(self) -> range:
        first = self.rank - self.tensor
        return range(first, first + self.job.parallel.tp)

    def _data_group(self) -> range:
        p = self.job.parallel
        first = self.tensor + p.tp * p.dp * self.stage
        return range(first, first + p.tp * p.dp, p.tp)

    def _expert_group(self) -> range:
        """Those that hold the other experts of the same layers."""
        ep = self.job.parallel.ep
        first = self.data // ep * ep
        return self._data_group()[first : first + ep]

    def _same_experts(self) -> range:
        ep = self.job.parallel.ep
        return self._data_group()[self.data % ep :: ep]

    # What it does.

    def _add(self, task: Task) -> int:
        return self.programs.add(self.rank, task)

    def _compute(self, lasts_ps: int, name: str = COMPUTE, also: list[int] | None = None) -> None:
        self.last = (self._add(Task(name, (*self.last, *(also or ())), self.step, lasts_ps)),)

    def _call(self, name: str, ranks: range, collective: str, size: int, after: tuple[int, ...]) -> int:
        group = f"{name} of ranks {ranks[0]} to {ranks[-1]}"
        if group in self.before:
            after = (*after, self.before[group])
        call = CollectiveTask(name, after, self.step, 0, group, tuple(ranks), collective, size, self.job.algorithm)
        self.before[group] = self._add(call)
        return self.before[group]

    def _sum(self) -> None:
        """Tensor-parallel ranks sum an activation; the next task needs it."""
        p, rate = self.job.parallel, self.job.gpu.scale_up_bps
        if p.tp == 1:
            return
        if rate:
            self._compute(round(2 * (p.tp - 1) / p.tp * self.activation * 8e12 / rate), SCALE_UP)
        else:
            self.last = (self._call("tensor", self._tensor_group(), "all_reduce", self.activation, self.last),)

    def _exchange(self) -> None:
        """Tokens go to the ranks of their experts, or come back."""
        if self.job.parallel.ep > 1:
            ranks = self._expert_group()
            self.last = (self._call("experts", ranks, "all_to_all", self.per_expert_rank, self.last),)

    def _receive(self, peer: int, tag: str) -> None:
        self.last = (self._add(ReceiveTask("receive", self.last, self.step, 0, peer, tag)),)

    def _send(self, peer: int, tag: str) -> None:
        size = max(1, self.activation // self.job.parallel.tp)
        self._add(SendTask("pipeline", self.last, self.step, 0, peer, tag, size))

    def _forward(self, batch: int) -> None:
        p = self.job.parallel
        if self.stage > 0:
            self._receive(self.rank - p.tp * p.dp, f"forward {self.step}.{batch}")
        for _ in range(self.layers):
            self._compute(self.forward_ps[0])
            self._sum()
            self._exchange()
            self._compute(self.forward_ps[1])
            self._exchange()
            self._sum()
        if self.stage < p.pp - 1:
            self._send(self.rank + p.tp * p.dp, f"forward {self.step}.{batch}")

    def _backward(self, batch: int) -> None:
        p = self.job.parallel
        if self.stage < p.pp - 1:
            self._receive(self.rank + p.tp * p.dp, f"backward {self.step}.{batch}")
        for _ in range(self.layers):
            self._exchange()
            self._compute(self.backward_ps[1])
            self._exchange()
            self._sum()
            self._compute(self.backward_ps[0])
            self._sum()
            if batch == p.micro_batches - 1:
                self._reduce_layer()
        if self.stage > 0:
            self._send(self.rank - p.tp * p.dp, f"backward {self.step}.{batch}")

    def _reduce_layer(self) -> None:
        """Its gradients are whole: they are reduced now if they fill a bucket, and if that may overlap."""
        shared, experts = self.job.gradient_bytes()
        for is_expert, size in ((False, shared), (True, experts)):
            self.buckets[is_expert] += size
            if self.job.parallel.overlap:
                self._empty(is_expert, self.bucket)

    def _reduce_all(self) -> None:
        """What is left, bucket by bucket."""
        for is_expert in self.buckets:
            self._empty(is_expert, 1)

    def _empty(self, is_expert: bool, least: int) -> None:
        while self.buckets[is_expert] >= least:
            size = min(self.buckets[is_expert], self.bucket)
            self._reduce(is_expert, size)
            self.buckets[is_expert] -= size

    def _reduce(self, is_expert: bool, size: int) -> None:
        ranks = self._same_experts() if is_expert else self._data_group()
        if len(ranks) > 1:
            name = "expert gradients" if is_expert else "gradients"
            self.gradients.append(self._call(name, ranks, "all_reduce", size, self.last))
