-- Replaces a value if it is what was looked at, and remembers why.
-- KEYS: the value, writers. ARGV: writer, acked, expected, value ('' for none), member, then audit
-- records (digest, time, generation, encoded).
local is = redis.call('GET', KEYS[1]) or ''
if is ~= ARGV[3] then return {'conflict', is} end
local counted = count(ARGV[1], ARGV[2])
if not counted then return {'lost'} end
if ARGV[4] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[4]) end
for i = 6, #ARGV, 4 do remember(ARGV[5], ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]) end
return {'applied', counted}
