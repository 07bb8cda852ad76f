from standfast import RequestUsage as RequestUsage
from standfast import Usage as Usage
