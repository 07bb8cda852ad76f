-- Replacing the bytes of runs and workspaces, with the rules of sql/commit.py and sql/workspaces.py.

CREATE OR REPLACE FUNCTION {_commit_rewrite_run}(op jsonb, blobs bytea[]) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    first_blob integer := (op->>'blob')::integer;
    first_entry integer := (op->>'entries')::integer;
    entries bigint := (op->>'journal')::bigint;
    snapshots bigint := (op->>'events')::bigint;
    old {_runs}%ROWTYPE;
BEGIN
    SELECT * INTO old FROM {_runs} WHERE run_id = op->>'run_id' FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HF006', MESSAGE = 'standfast: no such run',
            DETAIL = jsonb_build_object('what', 'run', 'name', op->>'run_id')::text;
    END IF;
    IF old.seal IS DISTINCT FROM blobs[first_blob + 1] OR old.journal_length <> entries
        OR old.event_length <> snapshots THEN
        RAISE EXCEPTION USING ERRCODE = 'HF012', MESSAGE = 'standfast: journal moved', DETAIL = jsonb_build_object(
            'name', op->>'run_id', 'expected', entries, 'found', old.journal_length)::text;
    END IF;
    UPDATE {_runs} SET data = blobs[first_blob], seal = blobs[first_blob + 2] WHERE run_id = op->>'run_id';
    UPDATE {_journal} SET data = entry.data
    FROM unnest(blobs[first_entry:first_entry + entries - 1]) WITH ORDINALITY AS entry(data, n)
    WHERE run_id = op->>'run_id' AND seq = entry.n;
    UPDATE {_events} SET data = entry.data
    FROM unnest(blobs[first_entry + entries:first_entry + entries + snapshots - 1]) WITH ORDINALITY AS entry(data, n)
    WHERE run_id = op->>'run_id' AND seq = entry.n;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_rewrite_versions}(op jsonb, blobs bytea[]) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    who text := op->>'key';
    wanted bigint := (op->>'versions')::bigint;
    first_blob integer := (op->>'blob')::integer;
    old {_workspaces}%ROWTYPE;
BEGIN
    SELECT * INTO old FROM {_workspaces} WHERE name = who FOR UPDATE;
    IF coalesce(old.version, 0) <> wanted OR old.workspace_id <> op->>'workspace_id' THEN
        RAISE EXCEPTION USING ERRCODE = 'HF010', MESSAGE = 'standfast: workspace moved',
            DETAIL = jsonb_build_object('name', who, 'expected', wanted, 'found', coalesce(old.version, 0))::text;
    END IF;
    UPDATE {_versions} SET data = entry.data
    FROM unnest(blobs[first_blob:first_blob + wanted - 1]) WITH ORDINALITY AS entry(data, n)
    WHERE name = who AND version = entry.n;
    RETURN NULL;
END
$$;
