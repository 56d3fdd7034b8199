-- What the cache has, and what time it is. KEYS: the entry.
local t = redis.call('TIME')
return {redis.call('GET', KEYS[1]) or '', text(tonumber(t[1]) * 1000000 + tonumber(t[2]))}
