from standfast.agents import draw_graph as draw_graph
from standfast.agents.graph import get_all_edges as get_all_edges
from standfast.agents.graph import get_all_nodes as get_all_nodes
from standfast.agents.graph import get_main_graph as get_main_graph
