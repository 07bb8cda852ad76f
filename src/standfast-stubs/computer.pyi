from standfast.agents import AsyncComputer as AsyncComputer
from standfast.agents import Button as Button
from standfast.agents import Computer as Computer
from standfast.agents import Environment as Environment
