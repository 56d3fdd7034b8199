-- What a node has to know before it beats: its last beat, whether the writes of its process are here,
-- what was lost, how many others were there before the server changed and have not been here since, and
-- the server process of the last beat, or of the beginning of the store, with what it had evicted. Where
-- that is not written down, it may be what was evicted: it is as if nothing had been.
-- KEYS: beats, writers. ARGV: now, node, run, then what was acknowledged (names and counts).
local now = time(ARGV[1])
local absent, last_there, first_here = {}, 0, nil
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
    local at, run, since, left = string.match(all[i + 1], '^%d+ (%S+) (%S+) (%S+) (%S+)$')
    at, since, left = tonumber(at), tonumber(since), tonumber(left)
    if run == ARGV[3] then
        last_there = math.max(last_there, left)
        first_here = math.min(first_here or since, since)
    else
        last_there = math.max(last_there, at)
        if all[i] ~= ARGV[2] then absent[#absent + 1] = at end
    end
end
local missing = 0
if (first_here or now) > now - 60000000 then
    for _, at in ipairs(absent) do
        if at > last_there - 60000000 then missing = missing + 1 end
    end
end
return {text(now), redis.call('HGET', KEYS[1], ARGV[2]) or '',
    is_behind(4, #ARGV) and 1 or 0, redis.call('GET', tag .. 'g') or '', missing,
    redis.call('HGET', KEYS[2], 'evicted') or '- 0'}
