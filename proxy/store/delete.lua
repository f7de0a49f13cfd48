#!lua flags=allow-oom
-- KEYS: meta, records, standing, blocks. 1 if there was a session.
local existed = redis.call('EXISTS', KEYS[1])
redis.call('UNLINK', unpack(KEYS))
return existed
