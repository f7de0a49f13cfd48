#!lua flags=allow-oom
-- KEYS: meta, records, standing, blocks, journal. Returns 1 if there was a session; records alone are no session, and a key of
-- another type is a damaged one.
local existed = redis.pcall('HEXISTS', KEYS[1], 'body')
if type(existed) == 'table' then
    existed = 1
end
redis.call('UNLINK', unpack(KEYS))
return existed
