"""Registers `coachwhip.team`, which starts the team and says how it fares."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.runtime.asyncrt import parallelism_level

from .team import MEMBER_COUNT, SHARED_JOBS, Word, start_team


@extensibility.register("coachwhip.team")
struct Team:
    """Starts the process's team of threads."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        figures: OutputTensor[dtype=DType.int64, rank=1, ...],
        most: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        """Starts the team unless it is there; see `team.mojo`.

        Parameters:
            target: "cpu".

        Args:
            figures: Output, `[2]`: members, and jobs that at least one of them took part in.
            most: Most members; one less than the runtime's threads is the limit, `[1]`.
            ctx: Device context.

        Raises:
            When the context is not a CPU's.
        """
        var workers = parallelism_level(ctx.assert_cpu_target())
        var members = min(Int(most.unsafe_ptr()[]), workers - 1)
        var words = Word(unsafe_from_address=start_team(members))
        figures.unsafe_ptr().unsafe_store(0, words[unsafe_offset=MEMBER_COUNT])
        figures.unsafe_ptr().unsafe_store(1, words[unsafe_offset=SHARED_JOBS])
