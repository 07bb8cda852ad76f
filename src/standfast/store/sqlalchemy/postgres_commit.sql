-- A commit as one statement: SELECT {_commit}(operations, blobs, the time or NULL for that of the server).
--
-- The same rules as sql/commit.py and sql/history_writes.py, function by function; a change there needs a migration that
-- runs this again. An operation is a JSON object; "op" is its kind. Binary data is in the array of blobs: "blob" is the
-- index of the first one of an operation, "seal" that of its seal. A refusal raises an error with its own SQLSTATE
-- (HF...) and details as JSON in DETAIL, which undoes the statement.

CREATE OR REPLACE FUNCTION {_commit}(ops jsonb, blobs bytea[], now double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    moment double precision := coalesce(now, extract(epoch FROM clock_timestamp()));
    op jsonb;
    outcome jsonb;
    outcomes jsonb := '[]';
BEGIN
    FOR op IN SELECT value FROM jsonb_array_elements(ops) LOOP
        CASE op->>'op'
            WHEN 'splice' THEN outcome := {_commit_splice}(op, blobs, moment);
            WHEN 'erase' THEN outcome := {_commit_erase}(op, blobs, moment);
            WHEN 'annotate' THEN outcome := {_commit_annotate}(op, moment);
            WHEN 'require' THEN outcome := {_commit_require}(op);
            WHEN 'quarantine' THEN outcome := {_commit_quarantine}(op, moment);
            WHEN 'save-run' THEN outcome := {_commit_save_run}(op, blobs, moment);
            WHEN 'move-behind' THEN
                UPDATE {_runs} SET queue_behind = CASE WHEN (op->>'behind')::boolean THEN 1 ELSE 0 END
                WHERE run_id = op->>'run_id' AND status = 'queued';
                outcome := NULL;
            WHEN 'delete-run' THEN outcome := {_commit_delete_run}(op);
            WHEN 'journal' THEN outcome := {_commit_journal}(op, blobs, moment);
            WHEN 'emit' THEN outcome := {_commit_emit}(op, blobs, moment);
            WHEN 'rewrite-run' THEN outcome := {_commit_rewrite_run}(op, blobs);
            WHEN 'save-approval' THEN outcome := {_commit_save_approval}(op, blobs, moment);
            WHEN 'append-versions' THEN outcome := {_commit_append_versions}(op, blobs, moment);
            WHEN 'rewrite-versions' THEN outcome := {_commit_rewrite_versions}(op, blobs);
            WHEN 'save-checkpoint' THEN outcome := {_commit_save_checkpoint}(op, blobs, moment);
            WHEN 'drop-checkpoint' THEN outcome := {_commit_drop_checkpoint}(op);
            WHEN 'delete-workspace' THEN outcome := {_commit_delete_workspace}(op);
            WHEN 'put-blob' THEN outcome := {_commit_put_blob}(op, blobs, moment);
            WHEN 'sweep-blobs' THEN outcome := {_commit_sweep_blobs}(op);
            WHEN 'put-document' THEN outcome := {_commit_put_document}(op, blobs, moment);
            WHEN 'delete-document' THEN outcome := {_commit_delete_document}(op);
            WHEN 'take-lease' THEN outcome := {_commit_take_lease}(op, moment);
            WHEN 'renew-lease' THEN outcome := {_commit_renew_lease}(op, moment);
            WHEN 'drop-lease' THEN outcome := {_commit_drop_lease}(op);
            WHEN 'fence' THEN outcome := {_commit_fence}(op);
        END CASE;
        outcomes := outcomes || jsonb_build_array(outcome);
    END LOOP;
    RETURN outcomes;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_splice}(op jsonb, blobs bytea[], now double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    who text := op->>'session_id';
    wanted bigint := (op->>'expected')::bigint;
    added bigint := (op->>'added')::bigint;
    first_blob integer := (op->>'blob')::integer;
    new_seal bytea := blobs[(op->>'seal')::integer];
    shaped boolean := op ? 'closed';
    old {sessions}%ROWTYPE;
    done {_keys}%ROWTYPE;
    existed boolean;
    own_tape bigint;
    start bigint;
    new_version bigint;
    new_length bigint;
BEGIN
    LOOP
        SELECT * INTO old FROM {sessions} WHERE session_id = who FOR UPDATE;
        existed := FOUND;
        -- Looked up under the session's lock: a repeated batch waits for the first one and then finds it done.
        IF op ? 'key' THEN
            SELECT * INTO done FROM {_keys} WHERE session_id = who AND name = op->>'key';
            IF FOUND THEN
                IF done.digest <> op->>'digest' THEN
                    RAISE EXCEPTION USING ERRCODE = 'HF005', MESSAGE = 'standfast: key reused',
                        DETAIL = jsonb_build_object('session_id', who, 'key', op->>'key')::text;
                END IF;
                RETURN jsonb_build_array(done.version, done.length);
            END IF;
        END IF;
        IF wanted <> coalesce(old.version, 0) THEN
            PERFORM {_commit_history_moved}(who, wanted, old.version, old.length);
        END IF;
        IF old.seal IS NOT NULL AND new_seal IS NULL THEN
            PERFORM {_commit_sealed}(who);
        ELSIF new_seal IS NOT NULL AND old.tape <> (op->>'tape')::bigint THEN
            PERFORM {_commit_history_moved}(who, wanted, old.version, old.length);
        END IF;
        own_tape := coalesce(old.tape, (op->>'tape')::bigint);
        start := coalesce(old.next_seq, 0);
        new_version := coalesce(old.version, 0) + 1;
        new_length := CASE WHEN shaped THEN (op->>'length')::bigint ELSE coalesce(old.length, 0) + added END;
        EXIT WHEN existed;
        -- Of several first writers one inserts; the others wait for it here and then find the row.
        INSERT INTO {sessions} (session_id, tape, version, length, next_seq, open_from, erased_upto, closed,
            generation, seal, owner, metadata, created_at, updated_at)
        VALUES (who, own_tape, new_version, new_length, added, coalesce((op->>'open_from')::bigint, 0), 0,
            coalesce(op->>'closed', '[]'), 0, new_seal, op->>'owner', '{}', now, now)
        ON CONFLICT (session_id) DO NOTHING;
        EXIT WHEN FOUND;
    END LOOP;
    IF existed THEN
        IF (op->>'archive')::boolean THEN
            INSERT INTO {_generations} (session_id, generation, length, spans, resumes_at, replaced_at)
            VALUES (who, old.generation, old.length,
                CASE old.closed WHEN '[]' THEN '[' ELSE left(old.closed, -1) || ',' END
                    || format('[%s,%s,%s]]', old.tape, old.open_from, old.next_seq),
                old.next_seq + added, now);
            old.generation := old.generation + 1;
        END IF;
        UPDATE {sessions} SET
            version = new_version,
            length = new_length,
            next_seq = start + added,
            open_from = coalesce((op->>'open_from')::bigint, old.open_from),
            closed = coalesce(op->>'closed', old.closed),
            generation = old.generation,
            seal = new_seal,
            updated_at = greatest(now, old.updated_at)
        WHERE session_id = who;
    END IF;
    IF added > 0 THEN
        INSERT INTO {items} (tape, seq, data, words)
        SELECT own_tape, start + item.n - 1, item.data,
            array_to_tsvector(array_remove(string_to_array(nullif(item.words, ''), ' '), ''))
        FROM ROWS FROM (
            unnest(blobs[first_blob:first_blob + added - 1]), jsonb_array_elements_text(op->'words')
        ) WITH ORDINALITY AS item(data, words, n)
        WHERE item.n <= added;
    END IF;
    IF op ? 'links' THEN
        INSERT INTO {_links} (tape, session_id, upto, held)
        SELECT (link->>0)::bigint, who, (link->>1)::bigint, link->>2 FROM jsonb_array_elements(op->'links') AS link;
    END IF;
    IF op ? 'key' THEN
        INSERT INTO {_keys} (session_id, name, digest, version, length)
        VALUES (who, op->>'key', op->>'digest', new_version, new_length);
    END IF;
    RETURN jsonb_build_array(new_version, new_length);
END
$$;

CREATE OR REPLACE FUNCTION {_commit_sealed}(who text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'HF008', MESSAGE = 'standfast: sealed',
        DETAIL = jsonb_build_object('session_id', who)::text;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_history_moved}(who text, wanted bigint, version bigint, length bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'HF001', MESSAGE = 'standfast: history moved',
        DETAIL = jsonb_build_object('session_id', who, 'expected', wanted,
            'version', coalesce(version, 0), 'length', coalesce(length, 0))::text;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_erase}(op jsonb, blobs bytea[], now double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    who text := op->>'session_id';
    wanted bigint := (op->>'expected')::bigint;
    forget boolean := (op->>'forget')::boolean;
    old {sessions}%ROWTYPE;
    shared bigint[];
    freed bigint;
BEGIN
    SELECT * INTO old FROM {sessions} WHERE session_id = who FOR UPDATE;
    IF wanted <> coalesce(old.version, 0) THEN
        PERFORM {_commit_history_moved}(who, wanted, old.version, old.length);
    END IF;
    IF old.session_id IS NULL THEN
        RETURN '[0, 0]';
    END IF;
    IF old.seal IS NOT NULL AND op->'seal' IS NULL AND NOT forget THEN
        PERFORM {_commit_sealed}(who);
    END IF;
    -- Two forks that let go of one tape at once would each leave it to the other: the second waits here.
    shared := ARRAY(SELECT tape FROM {_links} WHERE session_id = who ORDER BY tape);
    PERFORM 1 FROM {_links} WHERE tape = ANY (shared) ORDER BY tape, session_id FOR UPDATE;
    DELETE FROM {_links} WHERE session_id = who;
    DELETE FROM {_generations} WHERE session_id = who;
    DELETE FROM {_quarantine} WHERE session_id = who;
    DELETE FROM {_keys} WHERE session_id = who;
    IF forget THEN
        DELETE FROM {sessions} WHERE session_id = who;
    ELSE
        UPDATE {sessions} SET
            version = old.version + 1,
            length = 0,
            open_from = old.next_seq,
            erased_upto = old.next_seq,
            closed = '[]',
            seal = blobs[(op->>'seal')::integer],
            updated_at = greatest(now, old.updated_at)
        WHERE session_id = who;
    END IF;
    FOREACH freed IN ARRAY array_prepend(old.tape, shared) LOOP
        PERFORM {_commit_sweep}(freed);
    END LOOP;
    RETURN CASE WHEN forget THEN '[0, 0]' ELSE jsonb_build_array(old.version + 1, 0) END;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_annotate}(op jsonb, now double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    who text := op->>'session_id';
    old {sessions}%ROWTYPE;
BEGIN
    LOOP
        SELECT * INTO old FROM {sessions} WHERE session_id = who FOR UPDATE;
        EXIT WHEN FOUND;
        -- The version stays 0: nothing was said yet, and a first writer may still expect that.
        INSERT INTO {sessions} (session_id, tape, version, length, next_seq, open_from, erased_upto, closed,
            generation, seal, owner, metadata, created_at, updated_at)
        VALUES (who, (op->>'tape')::bigint, 0, 0, 0, 0, 0, '[]', 0, NULL, op->>'owner',
            {_commit_merged}('{}', (op->>'metadata')::json), now, now)
        ON CONFLICT (session_id) DO NOTHING;
        IF FOUND THEN
            RETURN '[0, 0]';
        END IF;
    END LOOP;
    IF (op->>'claim')::boolean AND old.owner <> op->>'owner' THEN
        RAISE EXCEPTION USING ERRCODE = 'HF015', MESSAGE = 'standfast: another owner',
            DETAIL = jsonb_build_object('owner', op->>'owner')::text;
    END IF;
    UPDATE {sessions} SET
        metadata = {_commit_merged}(old.metadata::json, (op->>'metadata')::json),
        owner = coalesce(op->>'owner', old.owner),
        updated_at = greatest(now, old.updated_at)
    WHERE session_id = who;
    RETURN jsonb_build_array(old.version, old.length);
END
$$;

-- With json and not jsonb, which would rewrite numbers and forget the order of the keys.
CREATE OR REPLACE FUNCTION {_commit_merged}(old json, patch json) RETURNS text
LANGUAGE sql AS $$
    SELECT '{' || coalesce(string_agg(to_json(key)::text || ':' || value::text, ',' ORDER BY place, later), '') || '}'
    FROM (
        SELECT coalesce(n.key, o.key) AS key, coalesce(n.value, o.value) AS value, o.place, n.place AS later
        FROM json_each(old) WITH ORDINALITY AS o(key, value, place)
        FULL JOIN json_each(patch) WITH ORDINALITY AS n(key, value, place) ON n.key = o.key
    ) AS merged
    WHERE json_typeof(value) <> 'null'
$$;

CREATE OR REPLACE FUNCTION {_commit_require}(op jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    old {sessions}%ROWTYPE;
BEGIN
    SELECT * INTO old FROM {sessions} WHERE session_id = op->>'session_id' FOR UPDATE;
    IF coalesce(old.version, 0) <> (op->>'version')::bigint THEN
        PERFORM {_commit_history_moved}(op->>'session_id', (op->>'version')::bigint, old.version, old.length);
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_quarantine}(op jsonb, now double precision) RETURNS jsonb
LANGUAGE sql AS $$
    INSERT INTO {_quarantine} (session_id, tape, seq, reason, quarantined_at)
    VALUES (op->>'session_id', (op->>'tape')::bigint, (op->>'seq')::bigint, op->>'reason', now)
    ON CONFLICT DO NOTHING;
    SELECT NULL::jsonb
$$;

CREATE OR REPLACE FUNCTION {_commit_save_run}(op jsonb, blobs bytea[], now double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    wanted bigint := (op->>'expected')::bigint;
    found_at bigint;
BEGIN
    LOOP
        SELECT revision INTO found_at FROM {_runs} WHERE run_id = op->>'run_id' FOR UPDATE;
        IF coalesce(found_at, 0) <> wanted THEN
            RAISE EXCEPTION USING ERRCODE = 'HF002', MESSAGE = 'standfast: run moved',
                DETAIL = jsonb_build_object('name', op->>'run_id', 'expected', wanted,
                    'found', coalesce(found_at, 0))::text;
        END IF;
        EXIT WHEN found_at IS NOT NULL;
        IF op ? 'parent' THEN
            -- Locked, so that it is not deleted before its fork is there.
            PERFORM 1 FROM {_runs} WHERE run_id = op->>'parent' FOR UPDATE;
            IF NOT FOUND THEN
                RAISE EXCEPTION USING ERRCODE = 'HF006', MESSAGE = 'standfast: no such run',
                    DETAIL = jsonb_build_object('what', 'run', 'name', op->>'parent')::text;
            END IF;
        END IF;
        INSERT INTO {_runs} (run_id, session_id, status, revision, data, journal_length, event_length, parent,
            queue_name, queue_rank, queue_share, created_at, updated_at)
        VALUES (op->>'run_id', op->>'session_id', op->>'status', 1, blobs[(op->>'blob')::integer], 0, 0,
            op->>'parent', coalesce(op->>'queue', ''), -coalesce((op->>'priority')::bigint, 0),
            coalesce(op->>'share', ''), now, now)
        ON CONFLICT (run_id) DO NOTHING;
        IF FOUND THEN
            RETURN NULL;
        END IF;
    END LOOP;
    UPDATE {_runs} SET
        session_id = op->>'session_id',
        status = op->>'status',
        revision = wanted + 1,
        data = blobs[(op->>'blob')::integer],
        queue_behind = 0,
        queue_name = coalesce(op->>'queue', queue_name),
        queue_rank = coalesce(-(op->>'priority')::bigint, queue_rank),
        queue_share = coalesce(op->>'share', queue_share),
        updated_at = now
    WHERE run_id = op->>'run_id';
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_delete_run}(op jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    wanted bigint := (op->>'expected')::bigint;
    found_at bigint;
    fork text;
BEGIN
    SELECT revision INTO found_at FROM {_runs} WHERE run_id = op->>'run_id' FOR UPDATE;
    IF coalesce(found_at, 0) <> wanted THEN
        RAISE EXCEPTION USING ERRCODE = 'HF002', MESSAGE = 'standfast: run moved',
            DETAIL = jsonb_build_object('name', op->>'run_id', 'expected', wanted,
                'found', coalesce(found_at, 0))::text;
    END IF;
    SELECT run_id INTO fork FROM {_runs} WHERE parent = op->>'run_id' ORDER BY position LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HF009', MESSAGE = 'standfast: run shared',
            DETAIL = jsonb_build_object('name', op->>'run_id', 'fork', fork)::text;
    END IF;
    DELETE FROM {_runs} WHERE run_id = op->>'run_id';
    DELETE FROM {_journal} WHERE run_id = op->>'run_id';
    DELETE FROM {_events} WHERE run_id = op->>'run_id';
    DELETE FROM {_approvals} WHERE run_id = op->>'run_id';
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_journal}(op jsonb, blobs bytea[], now double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    added bigint := jsonb_array_length(op->'kinds');
    first_blob integer := (op->>'blob')::integer;
    wanted bigint := (op->>'expected')::bigint;
    new_seal bytea := blobs[(op->>'seal')::integer];
    old_seal bytea;
    total bigint;
BEGIN
    SELECT journal_length, seal INTO total, old_seal FROM {_runs} WHERE run_id = op->>'run_id' FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HF006', MESSAGE = 'standfast: no such run',
            DETAIL = jsonb_build_object('what', 'run', 'name', op->>'run_id')::text;
    END IF;
    IF old_seal IS NOT NULL AND new_seal IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HF013', MESSAGE = 'standfast: run encrypted',
            DETAIL = jsonb_build_object('run_id', op->>'run_id')::text;
    END IF;
    IF wanted <> total OR (op ? 'previous_seal' AND old_seal IS DISTINCT FROM blobs[(op->>'previous_seal')::integer]) THEN
        RAISE EXCEPTION USING ERRCODE = 'HF012', MESSAGE = 'standfast: journal moved',
            DETAIL = jsonb_build_object('name', op->>'run_id', 'expected', wanted, 'found', total)::text;
    END IF;
    total := total + added;
    UPDATE {_runs} SET journal_length = total, seal = new_seal WHERE run_id = op->>'run_id';
    INSERT INTO {_journal} (run_id, seq, kind, data, logged_at)
    SELECT op->>'run_id', total - added + entry.n, entry.kind, entry.data, now
    FROM ROWS FROM (
        unnest(blobs[first_blob:first_blob + added - 1]), jsonb_array_elements_text(op->'kinds')
    ) WITH ORDINALITY AS entry(data, kind, n);
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_emit}(op jsonb, blobs bytea[], now double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    added bigint := jsonb_array_length(op->'kinds');
    first_blob integer := (op->>'blob')::integer;
    total bigint;
BEGIN
    UPDATE {_runs} SET event_length = event_length + added WHERE run_id = op->>'run_id'
    RETURNING event_length INTO total;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HF006', MESSAGE = 'standfast: no such run',
            DETAIL = jsonb_build_object('what', 'run', 'name', op->>'run_id')::text;
    END IF;
    INSERT INTO {_events} (run_id, seq, kind, data, logged_at)
    SELECT op->>'run_id', total - added + entry.n, entry.kind, entry.data, now
    FROM ROWS FROM (
        unnest(blobs[first_blob:first_blob + added - 1]), jsonb_array_elements_text(op->'kinds')
    ) WITH ORDINALITY AS entry(data, kind, n);
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_save_approval}(op jsonb, blobs bytea[], now double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    wanted bigint := (op->>'expected')::bigint;
    found_at bigint;
    change bigint;
BEGIN
    INSERT INTO {_counters} (name, value) VALUES ('approvals', 2)
    ON CONFLICT (name) DO UPDATE SET value = {_counters}.value + 1 RETURNING value INTO change;
    LOOP
        SELECT revision INTO found_at FROM {_approvals} WHERE approval_id = op->>'approval_id' FOR UPDATE;
        IF coalesce(found_at, 0) <> wanted THEN
            RAISE EXCEPTION USING ERRCODE = 'HF003', MESSAGE = 'standfast: approval moved',
                DETAIL = jsonb_build_object('name', op->>'approval_id', 'expected', wanted,
                    'found', coalesce(found_at, 0))::text;
        END IF;
        EXIT WHEN found_at IS NOT NULL;
        INSERT INTO {_approvals} (approval_id, run_id, session_id, status, revision, data, requested_at, expires_at,
            changed)
        VALUES (op->>'approval_id', op->>'run_id', op->>'session_id', op->>'status', 1,
            blobs[(op->>'blob')::integer], now, (op->>'expires_at')::double precision, change)
        ON CONFLICT (approval_id) DO NOTHING;
        IF FOUND THEN
            RETURN NULL;
        END IF;
    END LOOP;
    UPDATE {_approvals} SET
        status = op->>'status',
        revision = wanted + 1,
        data = blobs[(op->>'blob')::integer],
        expires_at = (op->>'expires_at')::double precision,
        changed = change
    WHERE approval_id = op->>'approval_id';
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_take_lease}(op jsonb, now double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    until double precision := now + (op->>'ttl')::double precision;
    held {_leases}%ROWTYPE;
BEGIN
    LOOP
        SELECT * INTO held FROM {_leases} WHERE name = op->>'name' FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO {_leases} (name, owner, token, expires_at) VALUES (op->>'name', op->>'owner', 1, until)
        ON CONFLICT (name) DO NOTHING;
        IF FOUND THEN
            RETURN jsonb_build_array(op->>'owner', 1, until);
        END IF;
    END LOOP;
    IF held.expires_at > now AND held.owner <> op->>'owner' THEN
        RAISE EXCEPTION USING ERRCODE = 'HF007', MESSAGE = 'standfast: lease held',
            DETAIL = jsonb_build_object('name', held.name, 'owner', held.owner, 'expires_at', held.expires_at)::text;
    END IF;
    IF held.expires_at <= now OR held.owner <> op->>'owner' THEN
        held.token := held.token + 1;
    END IF;
    UPDATE {_leases} SET owner = op->>'owner', token = held.token, expires_at = until WHERE name = held.name;
    RETURN jsonb_build_array(op->>'owner', held.token, until);
END
$$;

CREATE OR REPLACE FUNCTION {_commit_renew_lease}(op jsonb, now double precision) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    until double precision := now + (op->>'ttl')::double precision;
    held {_leases}%ROWTYPE;
BEGIN
    held := {_commit_held}(op);
    UPDATE {_leases} SET expires_at = until WHERE name = held.name;
    RETURN jsonb_build_array(held.owner, held.token, until);
END
$$;

CREATE OR REPLACE FUNCTION {_commit_held}(op jsonb) RETURNS {_leases}
LANGUAGE plpgsql AS $$
DECLARE
    held {_leases}%ROWTYPE;
BEGIN
    SELECT * INTO held FROM {_leases} WHERE name = op->>'name' FOR UPDATE;
    IF NOT FOUND OR held.token <> (op->>'token')::bigint OR held.owner = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'HF004', MESSAGE = 'standfast: fence lost',
            DETAIL = jsonb_build_object('name', op->>'name', 'expected', (op->>'token')::bigint,
                'found', coalesce(held.token, 0))::text;
    END IF;
    RETURN held;
END
$$;

CREATE OR REPLACE FUNCTION {_commit_drop_lease}(op jsonb) RETURNS jsonb
LANGUAGE sql AS $$
    -- The row stays with an empty owner, so that the token of the next owner is still a higher one.
    UPDATE {_leases} SET owner = '', expires_at = 0
    WHERE name = op->>'name' AND token = (op->>'token')::bigint;
    SELECT NULL::jsonb
$$;

CREATE OR REPLACE FUNCTION {_commit_fence}(op jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {_commit_held}(op);
    RETURN NULL;
END
$$;
