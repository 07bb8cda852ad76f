from standfast.runs import RunErrorData as RunErrorData
from standfast.runs import RunErrorHandler as RunErrorHandler
from standfast.runs import RunErrorHandlerInput as RunErrorHandlerInput
from standfast.runs import RunErrorHandlerResult as RunErrorHandlerResult
from standfast.runs import RunErrorHandlers as RunErrorHandlers
