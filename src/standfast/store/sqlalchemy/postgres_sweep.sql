-- Destroying what was erased by a tape's session, or left behind by it, and what no fork began with.

CREATE OR REPLACE FUNCTION {_commit_sweep}(freed bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    erased bigint;
    place bigint := 0;
    stretch record;
BEGIN
    SELECT erased_upto INTO erased FROM {sessions} WHERE tape = freed FOR UPDATE;
    erased := coalesce(erased, 4611686018427387904);
    FOR stretch IN
        SELECT s.start, s.stop FROM {_links} AS l, {_commit_stretches}(l.upto, l.held) AS s
        WHERE l.tape = freed
        UNION ALL SELECT erased, erased
        ORDER BY start
    LOOP
        DELETE FROM {items} WHERE tape = freed AND seq >= place AND seq < least(stretch.start, erased);
        place := greatest(place, stretch.stop);
    END LOOP;
END
$$;

-- All that it may be, when what a fork began with cannot be read or was not noted.
CREATE OR REPLACE FUNCTION {_commit_stretches}(upto bigint, held text) RETURNS TABLE (start bigint, stop bigint)
LANGUAGE plpgsql AS $$
BEGIN
    IF held IS NULL OR held !~ '^\[(\[\d+,\d+\],?)*\]$' THEN
        RETURN QUERY SELECT 0::bigint, upto;
    ELSE
        RETURN QUERY SELECT (pair->>0)::bigint, (pair->>1)::bigint FROM jsonb_array_elements(held::jsonb) AS pair;
    END IF;
END
$$;
