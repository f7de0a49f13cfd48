#!lua flags=no-writes
-- KEYS: meta, records, standing. Returns one consistent snapshot of a session; nil if there is none.
local meta = redis.call('HMGET', KEYS[1], 'body', 'revision')
if not meta[1] then
    return false
end
return { meta[1], meta[2], redis.call('HGETALL', KEYS[2]), redis.call('SMEMBERS', KEYS[3]) }
