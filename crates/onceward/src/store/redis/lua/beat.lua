-- Counts a beat of a node, if nothing has changed since it looked. It is a write as any other: whoever
-- has it has all that was written before.
-- KEYS: beats, writers. ARGV: writer, acked, evicted, now, node, beat expected, count, run, loss expected,
-- loss, how long beats are kept, the server process with what it has evicted (or ''), number of names, what
-- must be here still (names and counts), then an audit record (member, digest, time, generation, encoded).
local now = time(ARGV[4])
local last = redis.call('HGET', KEYS[1], ARGV[5]) or ''
if last ~= ARGV[6] or (redis.call('GET', tag .. 'g') or '') ~= ARGV[9] then return {'conflict'} end
local names = 13 + tonumber(ARGV[13]) * 2
-- Another server may have answered when it looked.
if is_behind(14, names) then return {'conflict'} end
local counted = count(ARGV[1], ARGV[2])
if not counted then return {'lost'} end
local at, run, since, left = string.match(last, '^%d+ (%S+) (%S+) (%S+) (%S+)$')
if run ~= ARGV[8] then since, left = text(now), at or '0' end
if last == '' then
    local all = redis.call('HGETALL', KEYS[1])
    for i = 1, #all, 2 do
        local beaten = tonumber(string.match(all[i + 1], '^%d+ (%S+)'))
        if beaten <= now - tonumber(ARGV[11]) then redis.call('HDEL', KEYS[1], all[i]) end
    end
end
redis.call('HSET', KEYS[1], ARGV[5], table.concat({ARGV[7], text(now), ARGV[8], since, left}, ' '))
if ARGV[12] ~= '' then redis.call('HSET', KEYS[2], 'evicted', ARGV[12]) end
-- Connections over which nothing has come for a week are gone.
local clock = tonumber(redis.call('TIME')[1])
redis.call('ZADD', tag .. 'W', clock, ARGV[1])
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', tag .. 'W', '-inf', clock - 604800, 'LIMIT', 0, 100)) do
    redis.call('HDEL', KEYS[2], gone)
    redis.call('ZREM', tag .. 'W', gone)
end
if ARGV[10] ~= ARGV[9] then
    if ARGV[10] == '' then redis.call('DEL', tag .. 'g') else redis.call('SET', tag .. 'g', ARGV[10]) end
end
for i = names + 1, #ARGV, 5 do remember(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]) end
return {'applied', counted}
