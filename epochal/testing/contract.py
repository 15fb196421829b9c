"""The contract suites that ship: subclass one, give it a harness, and pytest shows if a backend keeps the contract.

    class TestMySink(SinkBackendContract):
        @pytest.fixture
        def harness(self, tmp_path):
            return MyHarness(tmp_path)

The same suite on a bad day, when answers are lost and calls come twice: :mod:`epochal.testing.degraded`.

The tests are named after what must hold; a failing one says which promise of :mod:`epochal.contracts.backend` or
:mod:`epochal.contracts.state` is broken. Needs pytest.
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
