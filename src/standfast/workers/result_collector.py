"""Build the result of an execution from its messages, within the limits of the session."""

import io

import msgspec

from standfast.workers._host.output import StreamName, estimate_size
from standfast.workers.errors import ExecutionTimeout
from standfast.workers.results import ExecutionResult
from standfast.workers.wire import messages as m


class ResultCollector:
    """Keeps what an execution produced. Output is limited before it arrives here; displays are limited here."""

    def __init__(self, execution_id: str, *, display_limit: int) -> None:
        self._execution_id, self._display_limit = execution_id, display_limit
        self._texts: dict[StreamName, io.StringIO] = {}
        self._displays: list[m.DisplayMessage] = []
        self._display_bytes = 0
        self._dropped: dict[str, int] = {}

    def add(self, message: m.Message, size: int | None = None) -> None:
        """Add an output or display message, of this estimated size if it is known; others are ignored."""
        if isinstance(message, m.OutputMessage):
            self._add_output(message)
        elif isinstance(message, m.DisplayMessage):
            self._add_display(message, estimate_size(message) if size is None else size)

    def _add_output(self, message: m.OutputMessage) -> None:
        # One text instead of a list of messages: a worker may write each character by itself.
        text = self._texts.get(message.stream)
        if text is None:
            text = self._texts[message.stream] = io.StringIO()
        if message.dropped:
            self._dropped[message.stream] = self._dropped.get(message.stream, 0) + message.dropped
            text.write(f"\n... {message.dropped} bytes left out ...\n")
        text.write(message.data)

    def _add_display(self, message: m.DisplayMessage, size: int) -> None:
        if "displays" not in self._dropped:
            self._display_bytes += size
            if self._display_bytes <= self._display_limit:
                self._displays.append(message)
                return
        self._dropped["displays"] = self._dropped.get("displays", 0) + 1

    def build(self, last: m.ResultMessage | m.ErrorMessage) -> ExecutionResult:
        """Return the result of an execution that ended with the message ``last``."""
        if isinstance(last, m.ResultMessage):
            result = ExecutionResult(
                execution_id=self._execution_id, value=last.value, repr=last.repr, data=last.data, usage=last.usage,
                execution_time=last.execution_time, rolled_back=last.rolled_back,
            )  # fmt: skip
        else:
            result = ExecutionResult(
                execution_id=self._execution_id, error=last, usage=last.usage, execution_time=last.execution_time,
                rolled_back=last.rolled_back, state=last.state,
                reason=last.exception_message if last.state == "lost" else "",
            )  # fmt: skip
        return self._add_to(result)

    def build_timed_out(self, problem: ExecutionTimeout) -> ExecutionResult:
        """Return the result of an execution that was stopped at its deadline."""
        error = m.ErrorMessage(
            exception_type="ExecutionTimeout", exception_message=str(problem), execution_id=self._execution_id
        )
        state: m.NamespaceState = "lost" if problem.state == "lost" else "preserved"
        return self._add_to(
            ExecutionResult(self._execution_id, error=error, timed_out=True, state=state, reason=str(problem))
        )

    def _add_to(self, result: ExecutionResult) -> ExecutionResult:
        if not self._texts and not self._displays and not self._dropped:
            return result
        texts = {stream: text.getvalue() for stream, text in self._texts.items()}
        return msgspec.structs.replace(result, dropped=self._dropped, displays=tuple(self._displays), **texts)
