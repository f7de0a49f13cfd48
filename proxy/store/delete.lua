#!lua flags=allow-oom
-- KEYS: meta, records, standing, blocks. Returns 1 if there was a session; records alone are no session.
local existed = redis.call('HEXISTS', KEYS[1], 'body')
redis.call('UNLINK', unpack(KEYS))
return existed
