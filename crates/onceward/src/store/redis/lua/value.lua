-- Replaces a value if it is what was looked at, and remembers why.
-- KEYS: the value, writers. ARGV: writer, acked, evicted, expected, value ('' for none), member, then
-- audit records (digest, time, generation, encoded).
local is = redis.call('GET', KEYS[1]) or ''
if is ~= ARGV[4] then return {'conflict', is} end
local counted = count(ARGV[1], ARGV[2])
if not counted then return {'lost'} end
if ARGV[5] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[5]) end
for i = 7, #ARGV, 4 do remember(ARGV[6], ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]) end
return {'applied', counted}
