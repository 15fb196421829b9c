"""Contract suites for backends. Subclass a suite, provide a harness, and run it with pytest.

    class TestMySink(SinkBackendContract):
        @pytest.fixture
        def harness(self, tmp_path):
            return MyHarness(tmp_path)

:mod:`epochal.testing.degraded` runs the same suite with lost answers and repeated calls.

Each test is named after one guarantee of :mod:`epochal.contracts.backend` or :mod:`epochal.contracts.state`; a failing
test names the guarantee that is broken. Requires pytest.
"""

from epochal.testing.degraded import DegradedSinkHarness, Losses
from epochal.testing.degraded_state import DegradedStateHarness
from epochal.testing.direct_sink_contract import DirectSinkContract, DirectSinkHarness
from epochal.testing.lost_answers import AnswerLost, FileAnswers, LostAnswers, ProxyAnswers, StepAnswers
from epochal.testing.sink_contract import SinkBackendContract, SinkHarness
from epochal.testing.state_contract import StateBackendContract
from epochal.testing.state_world import StateHarness

__all__ = [
    "SinkBackendContract",
    "DirectSinkContract",
    "DirectSinkHarness",
    "SinkHarness",
    "StateBackendContract",
    "StateHarness",
    "DegradedSinkHarness",
    "DegradedStateHarness",
    "Losses",
    "LostAnswers",
    "AnswerLost",
    "StepAnswers",
    "FileAnswers",
    "ProxyAnswers",
]
