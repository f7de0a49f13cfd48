#!lua flags=allow-oom
-- KEYS: meta, records, standing, blocks. 1 if there was a session; records without a body are none.
local existed = redis.call('HEXISTS', KEYS[1], 'body')
redis.call('UNLINK', unpack(KEYS))
return existed
