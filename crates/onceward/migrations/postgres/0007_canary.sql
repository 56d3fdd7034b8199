-- The last beat of each process: a count under one that was acknowledged to it says that commits are
-- gone, as after a failover to a replica that was behind.
CREATE TABLE onceward.beats (
    node  uuid   PRIMARY KEY,
    count bigint NOT NULL,
    at    bigint NOT NULL,
    -- Of the server on which it was made: another one after each promotion.
    timeline text,
    -- When it made its first one there.
    since bigint NOT NULL,
    -- When it made its last one on the server before.
    left_at bigint
) WITH (fillfactor = 50);

-- What was found to be lost, until somebody acknowledges it: at most one row.
CREATE TABLE onceward.regressions (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    since    bigint,
    found    bigint NOT NULL
);

-- Which history of the server this is; null where that is not told.
CREATE FUNCTION onceward.timeline() RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;

-- Counts a beat, as `machine::beat` does. Comes with what was acknowledged last on each connection of
-- its process: a loss that no beat fell into is found by these. A record that is further than it was
-- told of was not lost.
CREATE FUNCTION onceward.beat(
    at bigint, of_node uuid, acked bigint, kept bigint,
    scopes text[], keys text[], generations integer[], attempts integer[], fences bigint[],
    completed boolean[], step_names text[]
) RETURNS TABLE (counted bigint, lost_after bigint, found_at bigint, absent bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now_at bigint := onceward.micros(at);
    here   text := onceward.timeline();
    last   onceward.beats;
    lost   boolean;
BEGIN
    SELECT * INTO last FROM onceward.beats b WHERE b.node = of_node FOR UPDATE;
    lost := coalesce(last.count, 0) < acked OR EXISTS (
        SELECT FROM unnest(scopes, keys, generations, attempts, fences, completed, step_names)
            w (scope, key, generation, attempts, fence, completed, step_name)
        LEFT JOIN LATERAL (
            SELECT * FROM onceward.records r
            WHERE r.scope = w.scope AND r.key = w.key OFFSET 0) r ON true
        -- What was made after its own grant was made anew, since the first is gone; and so was an
        -- attempt of the same number that began later. A fence is not under the time of its grant; one
        -- alone is moved on by a resolve.
        WHERE r.record_id IS NULL OR r.generation < w.generation
            OR (r.generation = w.generation AND (
                r.attempts < w.attempts OR r.created_at > w.fence
                OR (r.attempts = w.attempts AND r.fence < w.fence)
                OR (r.attempts = w.attempts AND r.fence > w.fence AND r.started_at > w.fence)
                OR (w.completed AND r.attempts > w.attempts)
                OR (w.completed AND r.state NOT IN ('completed', 'expired'))
                OR (w.step_name IS NOT NULL AND r.fence = w.fence
                    AND r.state = 'in_progress' AND r.open_effect IS DISTINCT FROM w.step_name
                    AND NOT EXISTS (
                        SELECT FROM onceward.steps s WHERE s.record_id = r.record_id
                        AND s.generation = r.generation AND s.name = w.step_name)))));
    IF last.node IS NULL THEN
        DELETE FROM onceward.beats b WHERE b.at <= now_at - kept;
    END IF;
    INSERT INTO onceward.beats AS b (node, count, at, timeline, since)
    VALUES (of_node, greatest(coalesce(last.count, 0), acked) + 1, now_at, here, now_at)
    ON CONFLICT (node) DO UPDATE
        SET count = greatest(b.count, acked) + 1, at = now_at, timeline = here,
            since = CASE WHEN b.timeline IS DISTINCT FROM here THEN now_at ELSE b.since END,
            left_at = CASE WHEN b.timeline IS DISTINCT FROM here THEN b.at ELSE b.left_at END
    RETURNING b.count INTO counted;
    IF lost THEN
        INSERT INTO onceward.regressions AS g (since, found) VALUES (last.at, now_at)
        ON CONFLICT (only_one) DO UPDATE SET
            since = CASE WHEN g.since IS NOT NULL AND excluded.since IS NOT NULL
                    THEN least(g.since, excluded.since) END,
            found = excluded.found;
        INSERT INTO onceward.audit_records (
            at, scope, key, generation, event, attempt, fence, reason)
        VALUES (now_at, '*', '*', 1, 'store_regressed', of_node, now_at,
                coalesce('lost after ' || last.at || ' us', 'no beat is left'))
        ON CONFLICT DO NOTHING;
    END IF;
    SELECT g.since, g.found INTO lost_after, found_at FROM onceward.regressions g;
    -- Those that were there in the last minute of the server before, however long ago that was, and
    -- have not been here. Who does not come in the first minute here is not waited for. Those that are
    -- here say when they left: without them, who had gone long before would be the last that was there.
    SELECT count(*) INTO absent FROM onceward.beats b
        WHERE b.timeline <> here
          AND b.at > (SELECT max(CASE WHEN o.timeline = here THEN o.left_at ELSE o.at END)
                      FROM onceward.beats o) - 60000000
          AND (SELECT min(o.since) FROM onceward.beats o WHERE o.timeline = here)
              > now_at - 60000000;
    RETURN NEXT;
END
$$;

-- Forgets what was found to be lost, and remembers who said so.
CREATE FUNCTION onceward.acknowledge_regression(at bigint, because text)
RETURNS TABLE (since bigint, found bigint)
LANGUAGE sql VOLATILE AS $$
    WITH known AS (
        DELETE FROM onceward.regressions g RETURNING g.since, g.found
    ), remembered AS (
        INSERT INTO onceward.audit_records (
            at, scope, key, generation, event, attempt, fence, reason)
        SELECT onceward.micros(at), '*', '*', 1, 'regression_acknowledged',
               '00000000-0000-0000-0000-000000000000', k.found, because
        FROM known k ON CONFLICT DO NOTHING
    )
    SELECT k.since, k.found FROM known k
$$;
