from standfast.base.log import log as log
logger = log
