-- The operations on workspaces, with the rules of sql/workspaces.py. The result of an operation that frees blobs is
-- [number, [places in an object store]].

CREATE OR REPLACE FUNCTION {_commit_append_versions}(op jsonb, blobs bytea[], now double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    who text := op->>'key';
    wanted bigint := (op->>'expected')::bigint;
    added bigint := (op->>'versions')::bigint;
    first_blob integer := (op->>'blob')::integer;
    old {_workspaces}%ROWTYPE;
BEGIN
    LOOP
        SELECT * INTO old FROM {_workspaces} WHERE name = who FOR UPDATE;
        IF coalesce(old.version, 0) <> wanted OR old.workspace_id <> op->>'workspace_id' THEN
            RAISE EXCEPTION USING ERRCODE = 'HF010', MESSAGE = 'standfast: workspace moved',
                DETAIL = jsonb_build_object('name', who, 'expected', wanted, 'found', coalesce(old.version, 0))::text;
        END IF;
        EXIT WHEN old.version IS NOT NULL;
        INSERT INTO {_workspaces} (name, workspace_id, version, created_at, updated_at)
        VALUES (who, op->>'workspace_id', 0, now, now)
        ON CONFLICT (name) DO NOTHING;
        EXIT WHEN FOUND;
    END LOOP;
    UPDATE {_workspaces} SET version = wanted + added, updated_at = now WHERE name = who;
    INSERT INTO {_versions} (name, version, data, created_at)
    SELECT who, wanted + entry.n, entry.data, now
    FROM unnest(blobs[first_blob:first_blob + added - 1]) WITH ORDINALITY AS entry(data, n);
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_save_checkpoint}(op jsonb, blobs bytea[], now double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    who text := op->>'key';
    wanted bigint := (op->>'version')::bigint;
    digests text[] := ARRAY(SELECT jsonb_array_elements_text((op->>'blobs')::jsonb));
    missing text[];
BEGIN
    PERFORM 1 FROM {_workspaces}
    WHERE name = who AND workspace_id = op->>'workspace_id' AND wanted BETWEEN 1 AND version FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HF006', MESSAGE = 'standfast: no such version',
            DETAIL = jsonb_build_object('what', 'workspace version', 'name', who || ' ' || wanted)::text;
    END IF;
    IF EXISTS (SELECT 1 FROM {_checkpoints} WHERE name = who AND version = wanted) THEN
        RETURN NULL;
    END IF;
    -- In the order of digests, so that two checkpoints with the same blobs do not wait for each other.
    PERFORM 1 FROM {_blobs} WHERE digest = ANY (digests) ORDER BY digest FOR UPDATE;
    UPDATE {_blobs} SET refs = refs + 1 WHERE digest = ANY (digests);
    missing := ARRAY(
        SELECT d FROM unnest(digests) AS d
        WHERE NOT EXISTS (SELECT 1 FROM {_blobs} WHERE digest = d) ORDER BY d COLLATE "C"
    );
    IF cardinality(missing) > 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'HF011', MESSAGE = 'standfast: blobs missing',
            DETAIL = jsonb_build_object('digests', to_jsonb(missing))::text;
    END IF;
    INSERT INTO {_checkpoints} (name, version, checkpoint_id, data, blobs, size, created_at)
    VALUES (who, wanted, op->>'checkpoint_id', blobs[(op->>'blob')::integer], op->>'blobs', (op->>'size')::bigint, now);
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_drop_checkpoint}(op jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
    RETURN {_commit_drop_checkpoints}(op->>'key', (op->>'version')::bigint, (op->>'version')::bigint);
END
$$;

CREATE OR REPLACE FUNCTION {_commit_delete_workspace}(op jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    who text := op->>'key';
    latest bigint;
    freed jsonb;
BEGIN
    SELECT version INTO latest FROM {_workspaces} WHERE name = who FOR UPDATE;
    IF NOT FOUND THEN
        RETURN '[0, []]';
    END IF;
    freed := {_commit_drop_checkpoints}(who, 1, latest);
    DELETE FROM {_versions} WHERE name = who;
    DELETE FROM {_workspaces} WHERE name = who;
    RETURN freed;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_drop_checkpoints}(who text, first bigint, last bigint) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    released text[];
BEGIN
    WITH dropped AS (
        DELETE FROM {_checkpoints} WHERE name = who AND version BETWEEN first AND last RETURNING blobs
    )
    SELECT array_agg(d) INTO released FROM dropped, jsonb_array_elements_text(dropped.blobs::jsonb) AS d;
    PERFORM 1 FROM {_blobs} WHERE digest = ANY (released) ORDER BY digest FOR UPDATE;
    UPDATE {_blobs} SET refs = refs - freed.times
    FROM (SELECT d, count(*) AS times FROM unnest(released) AS d GROUP BY d) AS freed
    WHERE digest = freed.d;
    RETURN {_commit_delete_blobs}(released);
END
$$;

CREATE OR REPLACE FUNCTION {_commit_delete_blobs}(released text[]) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    gone text[];
    places jsonb;
BEGIN
    WITH deleted AS (
        DELETE FROM {_blobs} WHERE digest = ANY (released) AND refs <= 0 RETURNING digest, place
    )
    SELECT array_agg(digest), coalesce(jsonb_agg(place ORDER BY digest) FILTER (WHERE place IS NOT NULL), '[]')
    INTO gone, places FROM deleted;
    DELETE FROM {_blob_data} WHERE digest = ANY (gone);
    RETURN jsonb_build_array(coalesce(cardinality(gone), 0), places);
END
$$;

CREATE OR REPLACE FUNCTION {_commit_put_blob}(op jsonb, blobs bytea[], now double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        UPDATE {_blobs} SET stored_at = now WHERE digest = op->>'digest';
        EXIT WHEN FOUND;
        INSERT INTO {_blobs} (digest, size, refs, place, stored_at)
        VALUES (op->>'digest', (op->>'size')::bigint, 0, op->>'place', now)
        ON CONFLICT (digest) DO NOTHING;
        IF FOUND THEN
            IF NOT op ? 'place' THEN
                INSERT INTO {_blob_data} (digest, data) VALUES (op->>'digest', blobs[(op->>'blob')::integer]);
            END IF;
            EXIT;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_sweep_blobs}(op jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
    RETURN {_commit_delete_blobs}(ARRAY(
        SELECT digest FROM {_blobs} WHERE refs <= 0 AND stored_at < (op->>'before')::double precision
        ORDER BY stored_at, digest LIMIT (op->>'limit')::bigint FOR UPDATE SKIP LOCKED
    ));
END
$$;
