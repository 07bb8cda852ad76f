from standfast.tracing import gen_span_id as gen_span_id
from standfast.tracing import gen_trace_id as gen_trace_id
from standfast.tracing.spans import gen_group_id as gen_group_id
from standfast.tracing.spans import now_iso as now_iso
time_iso = now_iso
