-- How many keys the server process has evicted since it started; '' if it does not tell.
local function evicted()
    local info = redis.pcall('INFO', 'stats')
    if type(info) ~= 'string' then return '' end
    local _, last = string.find(info, 'evicted_keys:', 1, true)
    return last and string.match(info, '^%d+', last + 1) or ''
end

-- Whether it has evicted keys since its connection was told how many there were (not, if it was not told,
-- or if only scripts are not): then what is not here may have been. No key is evicted while a script runs.
local function has_evicted(told)
    if told == '' then return false end
    local now = evicted()
    return now ~= '' and now ~= told
end

