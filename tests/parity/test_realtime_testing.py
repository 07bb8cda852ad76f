"""The scripted realtime model."""

import importlib
from typing import Any


async def test_a_scripted_model_says_whether_it_was_closed(lib: Any) -> None:
    testing = importlib.import_module(f"{lib.__name__}.realtime.testing")
    model = testing.ScriptedRealtimeModel()
    assert (model.closed, model.close_calls) == (False, 0)
    await model.connect({})
    await model.close()
    assert (model.closed, model.connected, model.close_calls) == (True, False, 1)
    await model.connect({})
    assert (model.closed, model.connected) == (False, True)
    await model.close()
