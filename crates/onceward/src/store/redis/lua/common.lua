-- Begins every script. KEYS[1] names the bucket: every other key of it has the same tag, so that a
-- script touches one slot. KEYS[2], where there is one, counts the writes of each process.
local tag = string.match(KEYS[1], '^{[^}]*}')

-- While a slot of a Cluster is on its way to another node, some keys of its bucket are there and some are
-- here, and a script is stopped at the first that is not: by halves. So each is stopped before it begins,
-- at a key that is nowhere.
if tag then redis.call('EXISTS', tag .. '-') end

-- The server's time in microseconds, unless a test says what time it is.
local function time(given)
    if given ~= '' then return tonumber(given) end
    local t = redis.call('TIME')
    return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

local function text(number) return string.format('%.0f', number) end

-- Beyond this a number in Lua is not exact. Whoever comes near it takes the way through Rust.
local FAR = 4503599627370496

-- The parts of a record but what was replied, as names and values.
local PLAIN = {'v', 's', 'a', 'f', 'g', 'c', 'b', 'l', 'n', 'e', 't', 'x', 'k', 'q', 'm', 'r', 'y', 'z'}

local function plain(key)
    local values = redis.call('HMGET', key, unpack(PLAIN))
    local pairs_of = {}
    for i, value in ipairs(PLAIN) do
        if values[i] then
            pairs_of[#pairs_of + 1] = value
            pairs_of[#pairs_of + 1] = values[i]
        end
    end
    return pairs_of
end

-- Counts a write of a process, under the name of its connection. What was acknowledged under that name
-- must be here: else nothing is written, for the server has lost it.
local function count(writer, acked)
    local before = tonumber(redis.call('HGET', KEYS[2], writer) or 0)
    if before < tonumber(acked) then return nil end
    if before % 64 == 0 then
        redis.call('ZADD', string.match(KEYS[2], '^{[^}]*}') .. 'W', redis.call('TIME')[1], writer)
    end
    return redis.call('HINCRBY', KEYS[2], writer, 1)
end

-- Whether something is gone of what was acknowledged to a process, by names and counts from here on.
local function is_behind(first, last)
    for i = first, last, 2 do
        if tonumber(redis.call('HGET', KEYS[2], ARGV[i]) or 0) < tonumber(ARGV[i + 1]) then return true end
    end
    return false
end

-- Remembers an audit record once.
local function remember(member, digest, at, generation, encoded)
    local key = tag .. 'a:' .. member
    if redis.call('HEXISTS', key, digest) == 1 then return end
    local place = redis.call('INCR', tag .. 'n')
    redis.call('HSET', key, digest, generation .. ' ' .. text(place) .. ' ' .. encoded)
    redis.call('ZADD', tag .. 'o', at, digest .. member)
end
