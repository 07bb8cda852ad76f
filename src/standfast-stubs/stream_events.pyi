from standfast.runs import AgentUpdatedStreamEvent as AgentUpdatedStreamEvent
from standfast.runs import RawResponsesStreamEvent as RawResponsesStreamEvent
from standfast.runs import RunItemStreamEvent as RunItemStreamEvent
from standfast.runs import StreamEvent as StreamEvent
